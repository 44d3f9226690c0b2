"""The RPC core through a simulated network: how fast its steps are, and whether a call is lost or runs twice.

    python -m benchmarks.rpc_core [--json] [--seconds 60]

Programs with a client half each and a server half, in one thread (`tests/wire/rpc/network.py`). A step is one event: a
call, a message that arrives, a run that ends, a cut, a new connection, an acknowledgement, a cancellation; every 5,000
steps the server is killed, and keeps its disk only. Each second another network begins, with another seed. At its end
it is healed: lost counts calls without a reply then, wrong those with another's reply or with several, twice runs that
were carried out twice under one idempotency key, or twice for one call in one life of the server.
"""

from __future__ import annotations

from random import Random
from time import perf_counter

from benchmarks.report import parser, report
from tests.wire.rpc.network import Network

STEPS = 1000
PROGRAMS = 4


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--seconds", type=float, default=60.0)
    given = options.parse_args()
    steps = calls = lost = wrong = twice = seed = 0
    spent_s = 0.0
    while spent_s < given.seconds:
        network, seed = Network(Random(seed), PROGRAMS), seed + 1
        began_s = perf_counter()
        while perf_counter() - began_s < 1.0:
            for _ in range(STEPS):
                network.step()
        spent_s += perf_counter() - began_s
        unanswered, mistaken = network.settle()
        lost, wrong, twice = lost + unanswered, wrong + mistaken, twice + network.twice
        steps += network.steps
        calls += sum(len(program.calls) for program in network.programs)
    bars = {
        "steps_per_s": (steps / spent_s, ">=", 100_000),
        "lost": (lost, "<=", 0),
        "wrong": (wrong, "<=", 0),
        "twice": (twice, "<=", 0),
    }
    report("rpc_core", bars, {"steps": steps, "calls": calls, "networks": seed, "seconds": spent_s}, given.json)


if __name__ == "__main__":
    main()
