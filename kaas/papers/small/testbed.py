"""The workloads as modelled kernels on software devices, with the ratios of the paper's machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kaas.ktask.arguments import Buffer, In, InOut, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.papers.small.kernels import ITERATION, LAYER, ptx, symbol
from kaas.papers.testbed import Testbed
from kaas.papers.workloads import GB, WORKLOADS, Workload

if TYPE_CHECKING:
    import numpy as np

MODELLED = """
What is modelled, and what is not:

- Kernels, copies between host and device, and steps take the times of Table 1, and no processor: a step sleeps. Kernels
  touch 256 elements of each buffer.
- An eTask is written with NumPy and cuda.core, with the kernels of the kTask.
- Starts of processes are real, and share this machine's processors with all else. On a busy machine they take longer,
  which makes eTasks slower and kTasks hardly.
- Constants are arrays in the host's memory, divided by the scale. A kTask's come from the server's store; an eTask
  fills its own when its process starts, which costs less than a model's file.
- A device runs two kTasks of a pool at a time where their memory allows (`slots`), the paper's executor one.
- An online load draws the client of each arrival at random, the same arrivals for each setting; over a cell's time it
  is 80 % of the measured peak.
"""
ELEMENTS = 256
"""The elements of a buffer that a kernel touches, whatever the buffer's size: a kernel's time is modelled."""


@dataclass(frozen=True, slots=True)
class SmallTestbed(Testbed):
    """A machine with the ratios of the paper's: a p3.8xlarge with four V100 (§5.1).

    Fields:
        shrink: what bytes and rates of copies are divided by, so that memory to device memory, and copy time to kernel
            time, stay those of Table 1.
        slow: what all modelled times are multiplied by: two cores, also slow ones, have to keep four devices busy. The
            start of a process is real: where it takes so many times the paper's 400 ms, a cold request is as long as it
            is there, counted in warm ones; longer starts are kinder to kTasks, shorter ones to eTasks.
    """

    scale: ClassVar[str] = "small"
    modelled: ClassVar[bool] = True
    devices: int = 4
    shrink: int = 64
    slow: float = 8.0
    device_bytes: int = 16 * GB
    copy_bytes_per_s: float = 12e9

    def copy_rate(self) -> float:
        """Return the bytes a second of each direction between host and device."""
        return self.copy_bytes_per_s / self.shrink / self.slow

    def bytes(self, size: int) -> int:
        """Return a size on this machine: whole elements, as many as a kernel touches at least."""
        return max(size // self.shrink, 4 * ELEMENTS) // 4 * 4

    def task(self, workload: Workload) -> KTask:
        """Return the kTask of a workload: a chain of launches through two temporaries, or an iteration."""
        x, y = self._buffer("x", workload.input_bytes), self._buffer("y", workload.output_bytes)
        name = symbol(workload)
        library = Library.from_ptx(ptx(name, ITERATION if workload.iterations > 1 else LAYER))
        if workload.iterations > 1:
            y = replace(y, init="zero")
            iteration = Kernel(library, name, 1, ELEMENTS, [In(x), InOut(y)])
            return KTask([iteration], [y], iterations=workload.iterations, name=workload.name)
        between = max(0, workload.dynamic_bytes - workload.input_bytes - workload.output_bytes) // 2
        temporaries = [self._buffer(f"t{k}", between) for k in range(2)]
        weights = [Buffer(each, self._constant(workload), "float32") for each in self.constant_names(workload)]
        kernels, before = list[Kernel](), x
        for launch in range(workload.launches):
            after = y if launch == workload.launches - 1 else temporaries[launch % 2]
            pair = (weights[(launch + turn * workload.launches) % len(weights)] for turn in range(2))
            args = [In(before), *(In(each) for each in pair), Out(after)]
            kernels.append(Kernel(library, name, 1, ELEMENTS, args))
            before = after
        return KTask(kernels, [y], name=workload.name)

    def constants(self, workload: Workload, value: float) -> dict[str, np.ndarray[Any, Any]]:
        """Return arrays filled with the replica's value; each ends with its number, which no kernel reads."""
        import numpy as np

        count = self._constant(workload) if workload.constants else 0
        made = {each: np.full(count, value, np.float32) for each in self.constant_names(workload)}
        for number, array in enumerate(made.values()):
            array[-1] = number
        return made

    def constant_names(self, workload: Workload) -> Collection[str]:
        """Return w0, w1, ..."""
        return [f"w{k}" for k in range(workload.constants)]

    def inputs(self, workload: Workload) -> dict[str, np.ndarray[Any, Any]]:
        """Return ones: a picture's or a text's bytes, or the kernels' input itself."""
        import numpy as np

        count = self.bytes(workload.input_bytes) // 4
        return {"data": np.ones(count, np.uint8)} if workload.steps else {"x": np.ones(count, np.float32)}

    def answer(self, workload: Workload, value: float) -> float:
        """Return each element that the kernels write."""
        if workload.iterations > 1:
            return 2.0  # y = y / 2 + 1, until it stays
        return 2 * value + (1 - 2 * value) * 0.5**workload.launches

    def kernels_s(self, workload: Workload, measured_s: float | None = None) -> float:  # noqa: ARG002 - it is modelled
        """Return the modelled time."""
        return workload.gpu_s * self.slow

    def etask(self, workload: Workload) -> dict[str, Any]:
        """Return the eTask, with the shapes of its input and output."""
        sizes = {"x": self.bytes(workload.input_bytes) // 4, "y": self.bytes(workload.output_bytes) // 4}
        shapes = {name: ["float32", [count]] for name, count in sizes.items()}
        function = f"kaas.papers.small.etasks:{workload.name.capitalize()}"
        return {"function": function, "inputs": {"x": shapes["x"]}, "outputs": {"y": shapes["y"]}}

    def step(self, workload: Workload, end: str) -> str:
        """Return the step's path."""
        return f"kaas.papers.small.steps:{workload.step(end)}"

    def device(self) -> dict[str, Any]:
        """Return a software device with its share of memory."""
        return {"kind": "software", "memory_bytes": self.bytes(self.device_bytes)}

    def prepare(self, folder: Path) -> Mapping[str, str]:
        """Write the devices' `softgpu.Model`."""
        model = folder / "model.toml"
        times = {symbol(each): each.gpu_s * self.slow / each.launches / each.iterations for each in WORKLOADS.values()}
        kernels = "".join(f"{name} = [{seconds!r}, 1.0]\n" for name, seconds in times.items())
        model.write_text(f"copy_bytes_per_s = {self.copy_rate()!r}\n[kernels]\n{kernels}")
        return {"SOFTGPU_MODEL": str(model)}

    def description(self) -> str:
        """Return the scale, what it is of, and what is modelled."""
        return (
            f"- {self.devices} software devices with modelled time. Bytes, and rates of copies, are those of the "
            f"paper's machine (V100 with {self.device_bytes / 1e9:g} GB each, {self.copy_bytes_per_s / 1e9:g} GB/s) "
            f"divided by {self.shrink:g}; times of kernels, copies and steps are Table 1's times {self.slow:g}: with "
            "half of that, two processors did not keep four devices busy, and two of the bars were missed. All "
            "else is real: processes and their starts, scheduling, caches, and messages, of fewer bytes. Figures 8 and "
            f"10 to 13 are at this scale; it is taken out of Table 1.\n{MODELLED}"
            "- Messages have the bytes of the paper's, divided by the scale: for each second of kernels, clients and "
            f"server move {self.shrink * self.slow:g} times fewer bytes than with the paper's sizes. So this says "
            "nothing of what large inputs and outputs cost: with 4 MB of each, as cGEMM's, a processor that also "
            "plays the client may take longer over them than a V100 over the kernels.\n"
        )

    def _constant(self, workload: Workload) -> int:
        return self.bytes(workload.constant_bytes // workload.constants) // 4

    def _buffer(self, name: str, nbytes: int) -> Buffer:
        return Buffer(name, self.bytes(nbytes) // 4, "float32")


SMALL = SmallTestbed()
