"""The executor's cost over launching a graph, and its gain over launching kernels or iterations one by one.

Both sides of a ratio run in turn, in one process, on the first GPU or else on a software GPU; figures are medians.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device as CoreDevice
from cuda.core import LaunchConfig, ObjectCode, launch

import kaas
from benchmarks.report import arguments, report
from kaas.executor.device.device import gpu_count, open_device
from kaas.executor.executor import Executor, InputSource, RunRequest, RunStats
from kaas.executor.plan.graph_cache import GraphCache, LaunchValues

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
N = 1024
"""The number of elements of every buffer: 4 KB of float32."""
KERNELS = 100
READERS = 10
"""Every tenth kernel reads the object that is drawn for each request: the pointers of so many launches change."""
OBJECTS = 32
KERNELS_S = 0.75e-3
"""The wanted time of all kernels of the graph together."""
CALIBRATION = 0.05
"""The allowed distance from it: the executor's cost does not depend on the kernels' time, but the ratio does."""
EMPTY_KERNELS = 1000
ITERATIONS = 1000
"""The number of iterations of two empty kernels."""
REPEATS = 600
WARM_UP = 100

X, W, Y = (kaas.Buffer(name, N, "float32") for name in "xwy")


def main() -> None:
    options = arguments(__doc__ or "")
    kind = "gpu" if gpu_count() else "software"
    executor = Executor(open_device(kind, 0))
    executor.device.context.stay()  # like an executor's threads that run requests
    library = kaas.Library.from_file(PTX)
    graph, graph_detail = measure_graph(executor, library)
    loop, loop_detail = measure_loop(executor, library)
    iterations, iterations_detail = measure_iterations(executor, library)
    bars = {
        "replay_over_raw_graph": (graph, "<=", 1.15),
        "replay_over_launch_loop": (loop, "<=", 0.5),
        "iterations_over_graph_launches": (iterations, "<=", 0.5),
    }
    detail = {"device": executor.device.info().name} | graph_detail | loop_detail | iterations_detail
    report("launch", bars, detail, options.json)
    executor.close()


def in_turn(*sides: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Return the median seconds of each side; the sides take turns."""
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(WARM_UP + repeats):
        for side, seconds in zip(sides, times, strict=True):
            began = perf_counter()
            side()
            if turn >= WARM_UP:
                seconds.append(perf_counter() - began)
    return [median(seconds) for seconds in times]


# --- a graph with work in it


def chain(library: kaas.Library, rounds: int) -> kaas.KTask:
    """Return the kTask of x -> y through KERNELS launches; each reads the output of the one before."""
    steps = [kaas.Buffer(f"t{k}", N, "float32") for k in range(KERNELS - 1)]
    kernels = []
    for k, (source, target) in enumerate(zip([X, *steps], [*steps, Y], strict=True)):
        operand = W if k % (KERNELS // READERS) == 0 else X
        args: list[Any] = [kaas.In(source), kaas.In(operand), kaas.Out(target), kaas.i32(N), kaas.i32(rounds)]
        kernels.append(kaas.Kernel(library, "step", N // 256, 256, args))
    return kaas.KTask(kernels, [Y])


def measure_graph(executor: Executor, library: kaas.Library) -> tuple[float, dict[str, Any]]:
    task = calibrated(executor, library)
    objects = [np.full(N, k, np.float32) for k in range(OBJECTS)]
    keys = [b"object-%d" % k for k in range(OBJECTS)]
    x = np.ones(N, np.float32)
    draw = random.Random(0)
    requests = [
        RunRequest(task, {"x": InputSource(x.copy()), "w": InputSource(objects[k], key=keys[k])}, {})
        for k in range(OBJECTS)
    ]
    stats: list[RunStats] = []
    drawn = iter(draw.choices(requests, k=WARM_UP + REPEATS))

    def replay() -> None:
        stats.append(executor.run(next(drawn)).stats)

    for request in requests:
        executor.run(request)
    with executor.device.context:
        raw = raw_graph(executor, task, x)
        replay_s, raw_s = in_turn(replay, raw)
    measured = stats[-REPEATS:]
    detail = {
        "replay_us": replay_s * 1e6,
        "raw_graph_us": raw_s * 1e6,
        "added_us": (replay_s - raw_s) * 1e6,
        "kernels_us": median(s.device_s for s in measured) * 1e6,
        "misses": sum(s.misses for s in measured),
    }
    stages = {f"{name}_us": median(s.stages[name] for s in measured) * 1e6 for name in ("plan", "fetch", "copy_in")}
    return replay_s / raw_s, detail | stages


def calibrated(executor: Executor, library: kaas.Library) -> kaas.KTask:
    """Return the chain with the number of rounds that comes near KERNELS_S."""
    rounds = 1
    sources = {"x": InputSource(np.ones(N, np.float32)), "w": InputSource(np.ones(N, np.float32))}
    for _ in range(12):
        task = chain(library, rounds)
        took_s = median(executor.run(RunRequest(task, sources, {})).stats.device_s for _ in range(100))
        if abs(took_s / KERNELS_S - 1) <= CALIBRATION:
            break
        rounds = max(1, min(rounds * 16, round(rounds * KERNELS_S / took_s)))
    return task


def raw_graph(executor: Executor, task: kaas.KTask, x: Any) -> Callable[[], object]:
    """Return a call of the same graph with the same copies, by the driver alone."""
    instance, stream, where = instantiated(executor, task)
    x_address, y_address, y = where[X], where[Y], np.empty(N, np.float32)

    def run() -> None:
        driver.cuMemcpyHtoDAsync(x_address, x, x.nbytes, stream)
        driver.cuGraphLaunch(instance, stream)
        driver.cuMemcpyDtoHAsync(y, y_address, y.nbytes, stream)
        driver.cuStreamSynchronize(stream)

    return run


def instantiated(executor: Executor, task: kaas.KTask) -> tuple[Any, Any, dict[kaas.Buffer, int]]:
    """Return the driver's handles of a kTask's graph instance and of a stream, and the addresses of its buffers."""
    device = executor.device
    plan = executor.prepare(task)
    with device.context:
        replay = GraphCache(plan, device)
        by_value = sum(1 << index for index in plan.inputs)
        placement = replay.place(by_value, device.allocate(replay.layout(by_value).nbytes))
        [(instance, _)] = replay.bind(LaunchValues(placement, placement.addresses, []))
        return instance.handle, device.stream().handle, dict(zip(plan.buffers, placement.addresses, strict=False))


# --- a thousand launches of an empty kernel


def measure_loop(executor: Executor, library: kaas.Library) -> tuple[float, dict[str, Any]]:
    task = kaas.KTask([kaas.Kernel(library, "empty", 1, 32, [kaas.Out(Y)]) for _ in range(EMPTY_KERNELS)], [Y])
    device = CoreDevice(0)
    device.set_current()
    stream = device.create_stream()
    kernel = ObjectCode.from_ptx(library.images[0].data).get_kernel("empty")
    config = LaunchConfig(grid=1, block=32)
    with executor.device.context:
        address = executor.device.allocate(Y.nbytes)

    def replay() -> None:
        executor.run(RunRequest(task, {}, {}))

    def loop() -> None:
        for _ in range(EMPTY_KERNELS):
            launch(stream, config, kernel, address)
        stream.sync()

    replay_s, loop_s = in_turn(replay, loop, repeats=REPEATS // 4)
    return replay_s / loop_s, {"empty_replay_us": replay_s * 1e6, "launch_loop_us": loop_s * 1e6}


# --- a thousand iterations of empty kernels


def measure_iterations(executor: Executor, library: kaas.Library) -> tuple[float, dict[str, Any]]:
    pair = [kaas.Kernel(library, "empty", 1, 32, [kaas.Out(Y)]) for _ in range(2)]
    request = RunRequest(kaas.KTask(pair, [Y], iterations=ITERATIONS), {}, {})
    instance, stream, _ = instantiated(executor, kaas.KTask(pair, [Y]))

    def iterate() -> None:
        executor.run(request)

    def launches() -> None:
        for _ in range(ITERATIONS):
            driver.cuGraphLaunch(instance, stream)
        driver.cuStreamSynchronize(stream)

    with executor.device.context:
        iterate_s, launches_s = in_turn(iterate, launches, repeats=REPEATS // 4)
    return iterate_s / launches_s, {"iterations_us": iterate_s * 1e6, "graph_launches_us": launches_s * 1e6}


if __name__ == "__main__":
    main()
