"""The RPC core on a simulated network: the rate of its steps, and the calls that are lost or run twice.

    python -m benchmarks.rpc_core [--json] [--seconds 60]

Several client halves and one server half run in one thread (`tests/wire/rpc/network.py`). A step is one event: a call,
a message that arrives, a run that ends, a cut, a new connection, an acknowledgement, or a cancellation. Every 5,000
steps the server is killed, and keeps only its disk. Each second another network begins, with another seed. At its end
the network is healed: lost counts calls without a reply then, wrong counts calls with another's reply or with several,
twice counts runs that were carried out twice under one idempotency key, or twice for one call in one epoch of the
server.
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
        calls += sum(len(program.calls) for program in network.all_programs())
    bars = {
        "steps_per_s": (steps / spent_s, ">=", 100_000),
        "lost": (lost, "<=", 0),
        "wrong": (wrong, "<=", 0),
        "twice": (twice, "<=", 0),
    }
    report("rpc_core", bars, {"steps": steps, "calls": calls, "networks": seed, "seconds": spent_s}, given.json)


if __name__ == "__main__":
    main()
