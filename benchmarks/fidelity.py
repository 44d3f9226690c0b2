"""A pool beside its simulation: the same arrivals at four software devices, live and in virtual time.

    python -m benchmarks.fidelity [--json] [--requests 800]

The workload is LALB's of 15 functions, of `benchmarks.workloads`, on four devices with modelled times. Bytes are
divided by SHRINK, times by FASTER. A function's load takes its bytes' time at one rate, since devices have one. A
load and a run are waits, but all else is real: messages, decisions, caches, copies of the objects' bytes. Neither
side is told the functions' times. The simulation is told one figure of the machine: the mean time of a warm request
beyond the modelled time of its kernel, as a few requests before the run have it. Latencies last from a request's
arrival at the pool to its end, as its record says. The figures compared are mean latency and miss ratio under each
policy; the bars are for the worst of them.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import kaas
from benchmarks.report import parser, positive, report
from benchmarks.tenants import PTX, N, X, check, pool
from benchmarks.workloads import Function, Workload, lalb
from kaas.scheduling.events import RequestArrived, RequestDone
from kaas.scheduling.recording import read
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.simulator import simulate
from softgpu import Model, Takes

POLICIES = ("lalbo3", "mqfq_sticky", "adaptive")
DEVICES = 4
FUNCTIONS = 15
LOAD = 0.45
"""Of the devices, by runs alone: about that of the paper's 325 requests a minute on 12 GPUs."""
SHRINK, FASTER = 256.0, 8.0
LOAD_MB_S = 800.0
"""Megabytes a second of a load, on the paper's scale: the mean of its table."""
ARENA_BYTES = 64 << 10
"""Memory of a device for a request's inputs and outputs."""
WARM_UPS = 20


@dataclass(frozen=True)
class Side:
    """The figures of a run: live, or simulated."""

    mean_latency_s: float
    miss_ratio: float


def workload(requests: int) -> Workload:
    """Return the workload as the devices have it."""
    whole = lalb(FUNCTIONS)
    functions = [
        Function(each.memory_mb / SHRINK, each.memory_mb / LOAD_MB_S / FASTER, each.run_s / FASTER, each.popularity)
        for each in whole.functions
    ]
    return replace(
        whole, devices=DEVICES, memory_mb=whole.memory_mb / SHRINK, functions=tuple(functions), requests=requests
    )


def symbol(number: int) -> str:
    """Return the name of a function's kernel: modelled times go by names."""
    return f"step_{number}"


def device(wanted: Workload) -> kaas.Device:
    """Return a device with the times of a workload's functions."""
    kernels = {symbol(number): Takes(each.run_s) for number, each in enumerate(wanted.functions)}
    rate = LOAD_MB_S / SHRINK * FASTER * (1 << 20)
    return kaas.Device("software", 256 << 20, Model(copy_bytes_per_s=rate, kernels=kernels))


def registered(wanted: Workload, number: int) -> kaas.Function:
    """Return a function whose constant has its memory."""
    count = round(wanted.functions[number].memory_mb * (1 << 20)) // 4
    x, y, w = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32"), kaas.Buffer("w", count, "float32")
    code = kaas.Library.from_ptx(PTX.read_text().replace("step", symbol(number)))
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(1)]
    task = kaas.KTask([kaas.Kernel(code, symbol(number), N // 256, 256, args)], [y], name=f"f{number}")
    return kaas.register(task, {"w": np.full(count, number + 1.0, np.float32)})


def live(scenario: Scenario, wanted: Workload, record: Path) -> Side:
    """Replay a scenario's arrivals in a pool, and return the figures of its record."""
    sizes = {"cache_bytes": round(wanted.memory_mb * (1 << 20)) + ARENA_BYTES, "host_cache_bytes": 1 << 30}
    with pool("fidelity", [device(wanted)] * DEVICES, scenario.policy.name, record=str(record), **sizes):
        functions = [registered(wanted, number) for number in range(len(wanted.functions))]
        for function in functions:
            kaas.prefetch(function).result()  # compiles its code on each device, and plans it
        kaas.flush()
        began_s, calls = time.perf_counter(), []
        for each in sorted(scenario.requests, key=lambda each: each.at_s):
            time.sleep(max(0.0, began_s + each.at_s - time.perf_counter()))
            number = int(each.function.removeprefix("f"))
            calls.append((number, functions[number].call(x=X)))
        for number, call in calls:
            check(call.result(), number + 1.0)
    arrived, latencies, misses = dict[int, float](), list[float](), 0
    for event in (entry[0] for _, entry in read(record) if isinstance(entry, tuple)):
        if isinstance(event, RequestArrived):
            arrived[event.request] = event.time_s
        elif isinstance(event, RequestDone):
            latencies.append(event.time_s - arrived[event.request])
            misses += event.loaded_bytes > 0
    return Side(fmean(latencies), misses / len(latencies))


def beyond_the_kernel_s(wanted: Workload, record: Path) -> float:
    """Return the seconds of a warm request beyond its kernel; each function's code is compiled on the way."""
    with pool("fidelity", [device(wanted)], "fcfs", record=str(record)):
        for number in range(len(wanted.functions)):
            function = registered(wanted, number)
            for _ in range(1 + (number == 0) * WARM_UPS):
                check(function.call(x=X).result(), number + 1.0)
    done = [entry[0] for _, entry in read(record) if isinstance(entry, tuple) and isinstance(entry[0], RequestDone)]
    return fmean(each.run_s for each in done[1 : 1 + WARM_UPS]) - wanted.functions[0].run_s


def simulated(scenario: Scenario) -> Side:
    """Return the figures of a scenario's simulation."""
    found = simulate(scenario)
    misses = sum(each.start != "hit" for each in found.dispatches)
    return Side(found.summary.mean_latency_s, misses / len(found.dispatches))


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--requests", type=positive, default=800, help="about how many, of each run")
    options.add_argument("--seed", type=int, default=0, help="of the arrivals")
    chosen = options.parse_args()
    wanted = workload(chosen.requests)
    detail: dict[str, Any] = {"devices": DEVICES, "functions": FUNCTIONS, "load": LOAD}
    ratios: dict[str, list[float]] = {"live_over_simulated": [], "simulated_over_live": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        beyond_s = beyond_the_kernel_s(wanted, folder / "warm.jsonl")
        detail["beyond_the_kernel_ms"] = round(beyond_s * 1e3, 3)
        slower = replace(
            wanted, functions=tuple(replace(each, run_s=each.run_s + beyond_s) for each in wanted.functions)
        )
        for policy in POLICIES:
            scenario = wanted.scenario(LOAD, chosen.seed, {"name": policy}, profiles=False)
            told = replace(scenario, functions=slower.scenario(LOAD, chosen.seed, {"name": policy}).functions)
            sides = {"live": live(scenario, wanted, folder / f"{policy}.jsonl"), "simulated": simulated(told)}
            for side, figures in sides.items():
                detail[f"{policy}_{side}_mean_latency_ms"] = round(figures.mean_latency_s * 1e3, 2)
                detail[f"{policy}_{side}_miss_ratio"] = round(figures.miss_ratio, 4)
            for figure in ("mean_latency_s", "miss_ratio"):
                there, here = getattr(sides["live"], figure), getattr(sides["simulated"], figure)
                ratios["live_over_simulated"].append(there / here)
                ratios["simulated_over_live"].append(here / there)
    report("fidelity", {bar: (max(found), "<=", 1.2) for bar, found in ratios.items()}, detail, chosen.json)


if __name__ == "__main__":
    main()
