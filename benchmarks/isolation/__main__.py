"""What each level of isolation costs, and what it stops.

    python -m benchmarks.isolation [--json] [--rounds 15] [--turns 3] [--device software]

Kernels: two executors, each with a software device, take turns with the same request, whose constants stay on both. A
ratio is the median over the rounds of the device seconds of the kernels, with fences over without. fence_over_none is
the geometric mean of ResNet-50, a GEMM and nearest neighbours, fence_worst the largest. The kernels of `patterns.py`
have no bar. With --device gpu both executors are on the first GPU, and that is all; ResNet-50 is left out where TVM or
onnx is not installed.

Changing memory: such executors take turns with the requests of `changing.py`, by the caller's clock.

Pools: each level in turns, as `pools.py` says. process_over_none is the rate of four clients without isolation over
that with executors of each client. Run it as root: processes with walls show nobody else their memory.

Escapes: the attacks of `escaping.py` that read or changed something of another client, under fences and processes.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import repeat
from statistics import geometric_mean

import softgpu
from benchmarks.isolation.changing import CACHE_BYTES, CHANGING
from benchmarks.isolation.escaping import escapes
from benchmarks.isolation.fencing import figures, in_turns, kernels_s, request_s
from benchmarks.isolation.patterns import PATTERNS
from benchmarks.isolation.pools import TAKES_S, USUAL, compare
from benchmarks.isolation.workloads import NEEDED, WORKLOADS
from benchmarks.report import Bar, parser, positive, report

WARM_UP = 2
FIRST_CHANGES = 24
"""The requests of a kind with changing memory that are not counted: after them the cache is full."""
MEMORY_BYTES = 1 << 30
OVER = "{}_fence_over_none"


def fences(kind: str, rounds: int) -> tuple[list[float], dict[str, float]]:
    """Return the ratios of the workloads with bars, and the figures of all kernels."""
    makers = {
        name: make
        for name, make in WORKLOADS.items()
        if kind == "software" or all(map(find_spec, NEEDED.get(name, ())))
    }
    detail: dict[str, float] = {}
    for name, make in makers.items():
        detail |= figures(name, in_turns(kind, repeat(make(), WARM_UP + rounds), WARM_UP, kernels_s))
    for name, pattern in PATTERNS.items():
        detail |= figures(name, in_turns(kind, repeat(pattern().request(), WARM_UP + 2 * rounds), WARM_UP, kernels_s))
    others = [detail[OVER.format(name)] for name in PATTERNS]
    detail |= {"others_fence_over_none": geometric_mean(others), "others_fence_worst": max(others)}
    return [detail[OVER.format(name)] for name in makers], detail


def changing_memory(rounds: int) -> dict[str, float]:
    """Return the figures of requests whose client's memory changes."""
    detail: dict[str, float] = {}
    for name, requests in CHANGING.items():
        taken = in_turns(
            "software", requests(FIRST_CHANGES + 2 * rounds), FIRST_CHANGES, request_s, cache_bytes=CACHE_BYTES
        )
        detail |= figures(name, taken)
    return detail


def main() -> None:
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=positive, default=15)
    options.add_argument("--turns", type=positive, default=3, help="pools of each level")
    options.add_argument("--device", choices=("software", "gpu"), default="software")
    chosen = options.parse_args()
    if chosen.device == "software":
        softgpu.load([MEMORY_BYTES] * 2)
    ratios, detail = fences(chosen.device, chosen.rounds)
    bars: dict[str, Bar] = {
        "fence_over_none": (geometric_mean(ratios), "<=", 1.05),
        "fence_worst": (max(ratios), "<=", 1.15),
    }
    if chosen.device == "software":
        detail |= changing_memory(chosen.rounds)
        pools = compare(chosen.turns)
        attacks = {level: escapes(level) for level in ("fence", "process")}
        over = {takes: pools["none"][f"rate_{takes}"] / pools["process"][f"rate_{takes}"] for takes in TAKES_S}
        bars["process_over_none"] = (over.pop(USUAL), "<=", 1.3)
        bars["attacks"] = (min(tried for tried, _, _ in attacks.values()), ">=", 100)
        bars["escapes"] = (sum(escaped for _, _, escaped in attacks.values()), "<=", 0)
        detail |= {f"process_over_none_{takes}": ratio for takes, ratio in over.items()}
        detail |= {f"pool_{level}_{name}": value for level, found in pools.items() for name, value in found.items()}
        for level, (tried, faulted, _) in attacks.items():
            detail |= {f"{level}_attacks": tried, f"{level}_attacks_that_faulted": faulted}
    report("isolation", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
