"""The cost of a request's path: a warm kTask of one kernel by kaas.call and by kaas.invoke, over a bare Ray actor.

    python -m benchmarks.path [--json] [--rounds N]

4 KB go in and 4 KB come back, on a GPU, or on a software GPU where there is none. The actor returns the array that it
takes; a second actor does so with bytes, which Ray moves faster. The kinds take turns of ten requests, so that all see
the same machine, and Ray's work after a reply falls to its own kind; figures are medians. 64 MB by value are compared
with NumPy's copy of them. The steps are measured afterwards, in other requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import parser, positive, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
from benchmarks.taps import steps
from kaas.executor.device.device import gpu_count
from kaas.kernels import library
from kaas.peers.overhead import ELEMENTS, OUTSTANDING, EchoActor, subtraction
from kaas.peers.turns import MeasuredSide, latencies_s, rates_per_s

LARGE_ELEMENTS = 16 << 20
DEVICE_BYTES = 256 << 20
WARM_UP = 100
RATE_REQUESTS = 1000
RATE_ROUNDS = 7
LARGE_ROUNDS = 30
STEP_ROUNDS = 500

Calls = Mapping[str, Callable[[], Any]]


def build_large() -> kaas.KTask:
    """Return the kTask of out = the first elements of x - v."""
    x, v = kaas.Buffer("x", LARGE_ELEMENTS, "float32"), kaas.Buffer("v", ELEMENTS, "float32")
    out = kaas.Buffer("out", ELEMENTS, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(v), kaas.Out(out), kaas.u32(ELEMENTS)]
    return kaas.KTask([kaas.Kernel(library("nearest_neighbours"), "vsub", ELEMENTS // 256, 256, args)], [out])


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--rounds", type=positive, default=1000, help="requests of each kind, one at a time")
    chosen = options.parse_args()
    task, x = subtraction(), np.zeros(ELEMENTS, np.float32)
    call = {"call": lambda: kaas.call(task, {"x": x}).result()}
    with pool():
        empty: Any = ray.remote(num_cpus=0)(EchoActor)
        target = empty.remote()
        raw = x.tobytes()
        one: Calls = {
            "actor": lambda: ray.get(target.run.remote(x)),
            "actor_of_bytes": lambda: ray.get(target.run.remote(raw)),
            **call,
            "invoke": lambda: ray.get(kaas.invoke(task, {"x": x})),
        }
        seconds = latencies_s(one, chosen.rounds, WARM_UP)
        stages = {stage.stage: stage.p50_s for stage in kaas.stats().stages}
        sides = {
            "actor": MeasuredSide(lambda: target.run.remote(x), ray.get),
            "call": MeasuredSide(lambda: kaas.call(task, {"x": x}), kaas.Future.result),
            "invoke": MeasuredSide(lambda: kaas.invoke(task, {"x": x}), ray.get),
        }
        per_s = rates_per_s(sides, RATE_REQUESTS, OUTSTANDING, RATE_ROUNDS)
        large_s = large(build_large())
        ways = {name: steps(name, one[name], STEP_ROUNDS) for name in ("call", "invoke")}
    with pool(ray=False):
        seconds |= {f"{name}_without_ray": values for name, values in latencies_s(call, chosen.rounds, WARM_UP).items()}
    p50 = {name: float(np.median(values)) for name, values in seconds.items()}
    bars = {
        "call_over_actor": (p50["call"] / p50["actor"], "<=", 0.5),
        "invoke_over_actor": (p50["invoke"] / p50["actor"], "<=", 2.0),
        "rate_over_actor": (per_s["call"] / per_s["actor"], ">=", 1.2),
        "large_over_memcpy": (large_s["call"] / large_s["memcpy"], "<=", 4.0),
    }
    detail: dict[str, Any] = {f"{name}_p50_us": round(value * 1e6, 1) for name, value in p50.items()}
    detail |= {f"{name}_p99_us": round(float(np.quantile(values, 0.99)) * 1e6, 1) for name, values in seconds.items()}
    detail |= {f"{name}_over_actor_of_bytes": round(p50[name] / p50["actor_of_bytes"], 3) for name in ways}
    detail |= {f"{name}_per_s": round(value, 1) for name, value in per_s.items()}
    detail |= {f"large_{name}_ms": round(value * 1e3, 2) for name, value in large_s.items()}
    detail |= {f"stage_{name}_p50_us": round(value * 1e6, 1) for name, value in stages.items()}
    for name, way in ways.items():
        detail |= {f"{name}: {step}, us": round(value * 1e6, 1) for step, value in way.items()}
    report("path", bars, detail | {"rounds": chosen.rounds, "bytes": ELEMENTS * 4}, chosen.json)


@contextmanager
def pool(**options: Any) -> Iterator[None]:
    kaas.init(devices=[kaas.Device("gpu" if gpu_count() else "software", DEVICE_BYTES)], **options)
    try:
        yield
    finally:
        kaas.shutdown()


def large(task: kaas.KTask) -> dict[str, float]:
    """Return the seconds for 64 MB by value: to copy them, and to run a kTask that takes them.

    Each request sends all of the bytes, although they are the same each time.
    """
    x, v = np.ones(LARGE_ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32)
    copied = x.copy()
    calls: Calls = {
        "memcpy": lambda: np.copyto(copied, x),
        "call": lambda: kaas.call(task, {"x": x, "v": v}).result(),
        "invoke": lambda: ray.get(kaas.invoke(task, {"x": x, "v": v})),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(LARGE_ROUNDS + 2):
        x[0] = turn
        for name, call in calls.items():
            began = perf_counter()
            answer = call()
            if turn >= 2:  # earlier turns warm up
                found[name].append(perf_counter() - began)
            if answer is not None and (answer[0], answer[1]) != (turn, 1):
                raise SystemExit(f"{name} gave {answer[:2]} in turn {turn}: this measured something else")
    return {name: median(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
