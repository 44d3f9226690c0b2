"""The device of the executor's benchmarks: the first GPU, or else a software GPU with modelled time.

Its kernel takes a stated time, which is modelled on the software GPU and spun on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
from cuda.bindings import driver

import kaas
import softgpu
from kaas.executor.device.device import OpenDevice, gpu_count, open_device
from kaas.executor.device.driver_errors import call
from kaas.executor.executor import Executor, InputSource, RunRequest, RunResult, RunStats

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
COPY_BYTES_PER_S = 2e9
"""The modelled rate of each direction."""
N = 1024
"""The number of elements that the kernel reads and writes: its time is modelled or spun."""
COPIES = 50
PROBES = 30
SHORTEST_S = 1e-5
"""The least time of the kernel: a launch takes longer than a shorter kernel."""


@dataclass(frozen=True, slots=True)
class Station:
    """A device for benchmarks.

    Fields:
        copy_bytes_per_s: the rate of copies from page-locked memory, modelled or measured.
        kernel_s: the time of the kernel of `requests`, with so many rounds.
    """

    kind: str
    name: str
    copy_bytes_per_s: float
    kernel_s: float
    rounds: int

    def executor(self, **options: Any) -> Executor:
        return Executor(open_device(self.kind, 0), **options)

    def requests(self, count: int, object_bytes: int) -> list[RunRequest]:
        """Return so many requests, each with its own object, which its kernel reads in the cache."""
        task = reader(object_bytes, self.rounds)
        objects = [np.full(object_bytes // 4, k, np.float32) for k in range(count)]
        return [request(task, value, b"object-%d" % k) for k, value in enumerate(objects)]


def open_station(memory_bytes: int, object_bytes: int, kernel_s: float | None = None, share: float = 1.0) -> Station:
    """
    Args:
        memory_bytes: of the software GPU.
        object_bytes: of the objects that are copied.
        kernel_s: the wanted time of the kernel; None: as long as a copy of one object.
        share: the kernel's share of the software GPU; on a GPU it takes a few multiprocessors.
    """
    if gpu_count():
        return _measured(object_bytes, kernel_s)
    seconds = object_bytes / COPY_BYTES_PER_S if kernel_s is None else kernel_s
    model = softgpu.Model(copy_bytes_per_s=COPY_BYTES_PER_S, kernels={"step": softgpu.Takes(seconds, share)})
    softgpu.load([softgpu.Device(memory_bytes, model)])
    return Station("software", "software GPU, modelled", COPY_BYTES_PER_S, seconds, 1)


def send(executor: Executor, requests: Iterable[RunRequest], lanes: int) -> tuple[float, list[RunStats]]:
    """Return the seconds of the requests from so many threads, each with one request at a time, and their results.

    The threads work as those of an executor's process: each stays in the device's context, takes the next request
    itself, and wakes no other thread.
    """
    sent = list(requests)
    results: list[RunResult | None] = [None] * len(sent)
    numbers = iter(range(len(sent)))  # one step of the iterator is one bytecode: no two threads get the same number

    def run() -> None:
        executor.device.context.stay()
        for number in numbers:
            results[number] = executor.run(sent[number])

    threads = [Thread(target=run) for _ in range(lanes)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = perf_counter() - began
    done = [result for result in results if result is not None]
    if len(done) < len(sent):
        raise SystemExit("a request failed: this measured nothing")
    for one, result in zip(sent, done, strict=True):
        check(one, result)
    return seconds, [result.stats for result in done]


def check(one: RunRequest, result: RunResult) -> None:
    """Check that the kernel has read its own request's object: a fast executor may be a wrong one."""
    w, rounds = float(one.inputs["w"].value[0]), one.task.kernels[0].args[-1]
    assert isinstance(rounds, kaas.Literal), "as reader has it"
    expected = 2 * w + (1 - 2 * w) * 0.5 ** int.from_bytes(rounds.data, "little")  # from x = 1
    if not np.allclose(result.outputs["y"], expected, rtol=1e-4):
        raise SystemExit(f"a request gave {result.outputs['y'][0]}, not {expected}: this measured something else")


def reader(object_bytes: int, rounds: int) -> kaas.KTask:
    """Return the kTask of a kernel that spins and reads a part of an object."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    w = kaas.Buffer("w", object_bytes // 4, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(rounds)]
    return kaas.KTask([kaas.Kernel(kaas.Library.from_file(PTX), "step", N // 256, 256, args)], [y])


def request(task: kaas.KTask, value: np.ndarray[Any, Any], key: bytes) -> RunRequest:
    return RunRequest(task, {"x": InputSource(np.ones(N, np.float32)), "w": InputSource(value, key=key)}, {})


# --- a GPU


def _measured(object_bytes: int, kernel_s: float | None) -> Station:
    device = open_device("gpu", 0)
    with device.context:
        copy_s = _copy_seconds(device, object_bytes)
    executor = Executor(device)
    rounds, seconds = _calibrate(executor, object_bytes, copy_s if kernel_s is None else kernel_s)
    executor.close()
    return Station("gpu", device.info().name, object_bytes / copy_s, seconds, rounds)


def _copy_seconds(device: OpenDevice, nbytes: int) -> float:
    """Return the median seconds of a copy from page-locked memory, by the device's clock."""
    stream = device.stream()
    source, target = call(driver.cuMemHostAlloc, nbytes, 0), call(driver.cuMemAlloc, nbytes)
    began, ended = call(driver.cuEventCreate, 0), call(driver.cuEventCreate, 0)
    times: list[float] = []
    for _ in range(COPIES):
        call(driver.cuEventRecord, began, stream.handle)
        call(driver.cuMemcpyHtoDAsync, target, source, nbytes, stream.handle)
        call(driver.cuEventRecord, ended, stream.handle)
        stream.synchronize()
        times.append(call(driver.cuEventElapsedTime, began, ended) / 1e3)
    for event in (began, ended):
        call(driver.cuEventDestroy, event)
    call(driver.cuMemFree, target)
    call(driver.cuMemFreeHost, source)
    stream.close()
    return median(times)


def _calibrate(executor: Executor, object_bytes: int, wanted_s: float) -> tuple[int, float]:
    """Return the number of rounds for the wanted time of the kernel, and the kernel's time with them."""
    value = np.zeros(object_bytes // 4, np.float32)
    rounds, seconds = 1000, 0.0
    for _ in range(6):  # the clocks of an idle GPU are low at first
        task = reader(object_bytes, rounds)
        seconds = median(executor.run(request(task, value, b"probe")).stats.device_s for _ in range(PROBES))
        if abs(seconds / wanted_s - 1) < 0.02:
            break
        rounds = max(1, round(rounds * wanted_s / max(seconds, SHORTEST_S)))
    return rounds, seconds
