"""The workloads at Table 1's sizes, on the NVIDIA GPUs of this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from kaas.errors import DeviceUnavailable, MissingPackage
from kaas.executor.device.device import gpu_count
from kaas.ktask.graph import KTask
from kaas.papers.full.networks import Network
from kaas.papers.full.work import Work
from kaas.papers.full.works import ETASKS, FOLDER, WORKS
from kaas.papers.testbed import Testbed
from kaas.papers.workloads import GB, Workload

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

PACKAGES = {
    "tvm_backend": "'./compilers/tvm_backend[onnx]'",
    "cutlass_blas": "'./libraries/cutlass_blas[build]'",
    "cupy": "cupy-cuda13x",
}
"""Packages that the workloads need -> the names that install them."""
NOTES = """
Differences from the paper's machine:

- GPUs are newer than the V100: kernels and copies are faster, starts of processes hardly.
- Each GPU has as much memory for cached objects as a V100, so that memory fills up at as many replicas a device.
- The steps before and after a network make its real inputs; they last for the CPU time of Table 1.
- An eTask of a network loads a library and weights that TVM has exported, and runs on TVM's own runtime, with dlight's
  schedules as the kTask's; the other eTasks are written with CuPy.
"""


@dataclass(frozen=True)
class FullTestbed(Testbed):
    """NVIDIA GPUs of one machine.

    Fields:
        devices: their number. gpu, arch: their name, and their architecture, as sm_90. works: the workloads by name.
            device_bytes: of each device, for cached objects: a V100's memory.
    """

    scale: ClassVar[str] = "full"
    modelled: ClassVar[bool] = False
    providers: ClassVar[tuple[str, ...]] = ("cutlass_blas",)
    devices: int
    gpu: str
    arch: str
    works: Mapping[str, Work] = field(default_factory=lambda: WORKS)
    device_bytes: int = 16 * GB

    def task(self, workload: Workload) -> KTask:
        """Return the kTask of a workload."""
        return self.works[workload.name].task()

    def constants(self, workload: Workload, value: float) -> dict[str, Array]:
        """Return the constants of a replica by name."""
        return self.works[workload.name].constants(value)

    def constant_names(self, workload: Workload) -> Collection[str]:
        """Return their names."""
        return self.works[workload.name].constant_names()

    def inputs(self, workload: Workload) -> dict[str, Array]:
        """Return the inputs of each request by name, as clients send them."""
        return self.works[workload.name].inputs()

    def answer(self, workload: Workload, value: float) -> float:
        """Return the first number of a replica's results."""
        return self.works[workload.name].answer(value)

    def kernels_s(self, workload: Workload, measured_s: float | None = None) -> float:
        """Return the measured time, or without one the paper's."""
        return workload.gpu_s if measured_s is None else measured_s

    def etask(self, workload: Workload) -> dict[str, Any]:
        """Return the eTask, with the kTask's inputs and outputs."""
        task, constants = self.task(workload), self.constant_names(workload)
        return {
            "function": f"kaas.papers.full.etasks:{ETASKS[workload.name]}",
            "inputs": {each.name: [each.dtype, [*each.shape]] for each in task.inputs if each.name not in constants},
            "outputs": {each.name: [each.dtype, [*each.shape]] for each in task.outputs},
        }

    def step(self, workload: Workload, end: str) -> str:
        """Return the step's path."""
        return f"kaas.papers.full.steps:{workload.step(end)}"

    def device(self) -> dict[str, Any]:
        """Return a GPU with a V100's memory."""
        return {"kind": "gpu", "memory_bytes": self.device_bytes}

    def prepare(self, folder: Path) -> Mapping[str, str]:  # noqa: ARG002 - all servers have the same networks
        """Export the networks for the eTasks, once."""
        return {FOLDER: self._exported.name}

    def description(self) -> str:
        """Return the GPUs, and what differs from the paper's machine."""
        return f"- {self.devices} GPUs: {self.gpu}. Nothing is modelled.\n{NOTES}"

    @cached_property
    def _exported(self) -> TemporaryDirectory[str]:
        folder = TemporaryDirectory(prefix="kaas-papers-networks-")
        target = import_module("tvm_backend.targets").parsed(self.arch)
        compiled = import_module("tvm_backend.library").library
        callback = "tvm_callback_cuda_compile"  # by the NVRTC that KaaS uses, instead of an installed toolkit's nvcc
        register: Any = import_module("tvm_ffi").register_global_func
        register(callback, lambda source, *_: compiled(source, target).images[0].data, override=True)
        for work in self.works.values():
            if isinstance(work, Network):
                work.export(Path(folder.name), target.tvm)
        return folder


def full_testbed() -> FullTestbed:
    """Return the GPUs of this machine.

    Raises:
        MissingPackage: a compiler, the BLAS library or CuPy is not installed. DeviceUnavailable: there is no GPU.
    """
    count = gpu_count()
    if not count:
        raise DeviceUnavailable("--scale full needs an NVIDIA GPU; --scale small has devices in software")
    absent = {package: install for package, install in PACKAGES.items() if find_spec(package) is None}
    if absent:
        install = " ".join(absent.values())
        message = f"--scale full needs {', '.join(absent)}; in a clone of KaaS: pip install {install}"
        raise MissingPackage(message, package=next(iter(absent)), install=install)
    return FullTestbed(count, *_name_and_arch())


def _name_and_arch() -> tuple[str, str]:
    """Return the name and the architecture of the first GPU, without a context on it."""
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    parts = (kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    major, minor = (driver.cuDeviceGetAttribute(part, 0)[1] for part in parts)
    return driver.cuDeviceGetName(256, 0)[1].split(b"\0")[0].decode(), f"sm_{major}{minor}"
