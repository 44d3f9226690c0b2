"""What an invocation costs over Ray: a warm one-kernel kTask against an empty relay of actors, and against one call.

    python -m benchmarks.overhead [--json]

Everything takes 4 KB in and gives 4 KB back, one at a time, and the kinds take turns, so that all see the same machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import parser, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
from kaas.kernels import library

ELEMENTS = 1024
WARM_UP = 100


class Empty:
    """An actor that gives back what it gets."""

    def run(self, data: Any) -> Any:
        return data


class Relay:
    """An asyncio actor that passes on to another: the shape of the pool without anything in it."""

    def __init__(self, target: Any) -> None:
        self._target = target

    async def run(self, data: Any) -> Any:
        return await self._target.run.remote(data)


def build() -> kaas.KTask:
    """out = x - x."""
    x, out = kaas.Buffer("x", ELEMENTS, "float32"), kaas.Buffer("out", ELEMENTS, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(x), kaas.Out(out), kaas.u32(ELEMENTS)]
    return kaas.KTask([kaas.Kernel(library("nearest_neighbours"), "vsub", ELEMENTS // 256, 256, args)], [out])


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, np.ndarray[Any, Any]]:
    """Seconds of each call, by name."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    seconds = {name: np.empty(rounds) for name in calls}
    for i in range(rounds):
        for name, call in calls.items():
            began = perf_counter()
            call()
            seconds[name][i] = perf_counter() - began
    return seconds


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--rounds", type=int, default=1000)
    chosen = options.parse_args()
    kaas.init(devices=[kaas.Device("software", 64 << 20)])
    try:
        empty: Any = ray.remote(num_cpus=0)(Empty)
        relay: Any = ray.remote(num_cpus=0)(Relay)
        target = empty.remote()
        between = relay.remote(empty.remote())
        task, x = build(), np.zeros(ELEMENTS, np.float32)
        raw = x.tobytes()  # Ray moves bytes faster than arrays; who invokes has an array and wants one
        calls: dict[str, Callable[[], Any]] = {
            "actor": lambda: ray.get(target.run.remote(x)),
            "relay": lambda: ray.get(between.run.remote(x)),
            "actor_of_bytes": lambda: ray.get(target.run.remote(raw)),
            "relay_of_bytes": lambda: ray.get(between.run.remote(raw)),
            "invoke": lambda: ray.get(kaas.invoke(task, {"x": x})),
        }
        seconds = measure(calls, chosen.rounds)
        stages = {stage.stage: stage.p50_s for stage in kaas.stats().stages}
    finally:
        kaas.shutdown()
    p50 = {name: float(np.median(values)) for name, values in seconds.items()}
    detail = {f"{name}_p50_us": round(value * 1e6, 1) for name, value in p50.items()}
    detail |= {f"{name}_p99_us": round(float(np.quantile(values, 0.99)) * 1e6, 1) for name, values in seconds.items()}
    detail |= {f"stage_{name}_p50_us": round(value * 1e6, 1) for name, value in stages.items()}
    bars = {
        "invoke_over_relay": (p50["invoke"] / p50["relay"], "<=", 1.3),
        "invoke_over_actor": (p50["invoke"] / p50["actor"], "<=", 3.5),
    }
    detail |= {f"invoke_over_{name}": round(p50["invoke"] / p50[name], 3) for name in p50 if name.endswith("_of_bytes")}
    report("overhead", bars, detail | {"rounds": chosen.rounds, "bytes": ELEMENTS * 4}, chosen.json)


if __name__ == "__main__":
    main()
