"""The simulator's time for a request, and its memory for many.

    python -m benchmarks.simulator [--json] [--policy NAME] [--requests N]

1,000 devices, and calls of 1,000 functions with the popularity, the run times and the bursts of Azure's trace, at a
warm utilisation of 0.6. Under each policy but exclusive and static the time of a simulation, with all checks and
without its dispatches, is taken in turns with that of a bare SimPy queue: the same arrivals and run times, a
`Resource` of 1,000 places, and for each request a process that asks for a place, keeps it for its run, and notes its
latency. fcfs_over_simpy is the median of the quotients of both times, and others_over_simpy that of the slowest other
policy. memory_growth is the peak memory of a process that simulates 1,000,000 requests over that of one with 100,000.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from statistics import median
from time import process_time
from typing import Any

import simpy

from benchmarks.report import parser, positive, report
from benchmarks.workloads import azure
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation.scenario import Scenario, ScenarioRequest
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

DEVICES, FUNCTIONS, LOAD, RUN_CV, SEED = 1000, 1000, 0.6, 0.8, 0
REQUESTS, TURNS = 40_000, 3
FEW, MANY = 100_000, 1_000_000
SHARING = tuple(name for name in POLICIES if name not in ("exclusive", "static"))


def scenario(policy: str) -> Scenario:
    """Return the devices and functions, without requests."""
    workload = azure(FUNCTIONS, DEVICES)
    functions = {
        f"f{number}": {"memory_mb": each.memory_mb, "load_s": each.load_s, "run_s": each.run_s}
        for number, each in enumerate(workload.functions)
    }
    devices = [{"memory_mb": workload.memory_mb}] * DEVICES
    return read({"policy": {"name": policy}, "devices": devices, "functions": functions})


def calls(count: int) -> Iterator[ScenarioRequest]:
    """Return an iterator over so many requests."""
    return islice(azure(FUNCTIONS, DEVICES).calls(LOAD, SEED, RUN_CV), count)


def simpy_s(requests: Sequence[ScenarioRequest]) -> float:
    """Return the processor seconds of a queue in SimPy."""
    environment = simpy.Environment()
    devices = simpy.Resource(environment, DEVICES)
    latencies_s: list[float] = []

    def request(run_s: float) -> Generator[simpy.Event, Any, None]:
        arrived_s = environment.now
        with devices.request() as place:
            yield place
            yield environment.timeout(run_s)
        latencies_s.append(environment.now - arrived_s)

    def arrivals() -> Generator[simpy.Event, Any, None]:
        for each in requests:
            yield environment.timeout(each.at_s - environment.now)
            environment.process(request(each.run_s or 0.0))

    gc.collect()
    began_s = process_time()
    environment.process(arrivals())
    environment.run()
    took_s = process_time() - began_s
    if len(latencies_s) != len(requests):
        raise RuntimeError(f"{len(latencies_s)} of {len(requests)} requests ended")
    return took_s


def simulated_s(policy: str, requests: Sequence[ScenarioRequest]) -> float:
    """Return the processor seconds of a simulation."""
    given = scenario(policy)
    gc.collect()
    began_s = process_time()
    summary = simulate(given, requests=requests, dispatches=False).summary
    took_s = process_time() - began_s
    if summary.hits + summary.loads != len(requests):
        raise RuntimeError(f"{summary.hits + summary.loads} of {len(requests)} requests ran")
    return took_s


def peak_kb(count: int) -> int:
    """Return the peak memory of a new process that simulates so many requests."""
    command = [sys.executable, "-m", "benchmarks.simulator", "--peak-of", str(count)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure, and report."""
    options = parser((__doc__ or "").partition("\n")[0])
    others = [name for name in SHARING if name != "fcfs"]
    options.add_argument("--policy", choices=others, help="only this one and fcfs")
    options.add_argument("--requests", type=positive, default=REQUESTS)
    options.add_argument("--peak-of", type=positive, help="simulate so many requests, and print the peak memory in KB")
    chosen = options.parse_args()
    if chosen.peak_of is not None:
        simulate(scenario("fcfs"), requests=calls(chosen.peak_of), dispatches=False)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    requests = list(calls(chosen.requests))
    over_simpy: dict[str, float] = {}
    detail: dict[str, Any] = {"requests": len(requests)}
    for policy in SHARING if chosen.policy is None else dict.fromkeys(("fcfs", chosen.policy)):
        turns = [(simpy_s(requests), simulated_s(policy, requests)) for _ in range(TURNS)]
        over_simpy[policy] = median(ours_s / simpy_s for simpy_s, ours_s in turns)
        detail[f"{policy}_us"] = round(median(ours_s for _, ours_s in turns) / len(requests) * 1e6, 1)
        detail[f"simpy_beside_{policy}_us"] = round(median(theirs_s for theirs_s, _ in turns) / len(requests) * 1e6, 1)
    few_kb, many_kb = peak_kb(FEW), peak_kb(MANY)
    detail |= {"peak_mb_of_few": few_kb // 1024, "peak_mb_of_many": many_kb // 1024}
    bars = {
        "fcfs_over_simpy": (over_simpy["fcfs"], "<=", 4),
        "others_over_simpy": (max(value for policy, value in over_simpy.items() if policy != "fcfs"), "<=", 8),
        "memory_growth": (many_kb / few_kb, "<=", 1.1),
    }
    report("simulator", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
