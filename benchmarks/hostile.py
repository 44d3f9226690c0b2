"""A client with a key sends nonsense to a server as fast as it is let; what another client sees of that.

    python -m benchmarks.hostile [--mutated N] [--replayed N] [--json]

100,000 mutated frames and 10,000 messages that are replayed or cut off, at 1,000 a second, from a program of its own,
while another client's requests go on, 200 a second. `crashes` counts ends of the server and of its executors, and
errors that the server did not expect; `other_p99` is that client's 99th percentile of latency over a quiet time's
before; `memory_growth` compares medians of what server and executors hold in the last third and in the second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np

import kaas
from benchmarks.path import ELEMENTS, build
from benchmarks.report import parser, positive, report
from benchmarks.served import Memory, Server

MUTATED, REPLAYED = 100_000, 10_000
ATTACKER, OTHER = "eve", "bob"
RATE = 1000.0
OTHERS_RATE = 200.0
QUIET_S = 20.0
WARM_UP = 300


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--mutated", type=positive, default=MUTATED, help="frames")
    options.add_argument("--replayed", type=positive, default=REPLAYED, help="messages, whole and cut off")
    options.add_argument("--quiet-seconds", type=float, default=QUIET_S, help="before the attack")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), [ATTACKER, OTHER])
        with server, kaas.Client(server.address, keys=server.keys(OTHER)) as client:
            other = Other(client)
            for _ in range(WARM_UP):
                other.ask(0)
            quiet_ends_s = monotonic() + given.quiet_seconds
            quiet_s = other.latencies(lambda: monotonic() < quiet_ends_s)
            executors = set(server.executors())
            if not executors:
                raise SystemExit("no executor was found: this would measure something else")
            began_s = monotonic()
            with Memory(server) as memory, attack(server, given) as attacker:
                attacked_s = other.latencies(lambda: attacker.poll() is None)
                said, _ = attacker.communicate()
            seconds = monotonic() - began_s
            if attacker.returncode:
                raise SystemExit("the attack itself failed: this measured something else")
            ended = {"server": int(not server.alive), "executors": len(executors - set(server.executors()))}
        ended |= {"with_status": int(server.ended != [0]), "errors_in_the_log": server.errors}
    own, pool = memory.thirds(seconds)
    p99_s = [float(np.quantile(found, 0.99)) for found in (quiet_s, attacked_s)]
    bars: dict[str, Any] = {
        "crashes": (sum(ended.values()), "<=", 0),
        "other_p99": (p99_s[1] / p99_s[0], "<=", 2),
        "memory_growth": ((own[2] + pool[2]) / (own[1] + pool[1]), "<=", 1.05),
    }
    detail: dict[str, Any] = {
        "p50_quiet_ms": float(np.median(quiet_s)) * 1e3,
        "p50_ms": float(np.median(attacked_s)) * 1e3,
        "p99_quiet_ms": p99_s[0] * 1e3,
        "p99_ms": p99_s[1] * 1e3,
        "requests": len(attacked_s),
        "seconds": seconds,
        "server_mb_by_thirds": own,
        "executors_mb_by_thirds": pool,
        **{f"ended: {what}": count for what, count in ended.items()},
        **{f"attack, {what}": count for what, count in json.loads(said).items()},
    }
    report("hostile", bars, detail, given.json)


def attack(server: Server, given: argparse.Namespace) -> subprocess.Popen[str]:
    sizes = (given.mutated, given.replayed, RATE, given.seed)
    command = [sys.executable, "-m", "benchmarks.attack", server.address, str(server.keys(ATTACKER)), *map(str, sizes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Other:
    """The client that means well."""

    def __init__(self, client: kaas.Client) -> None:
        self._client = client
        self._function = client.register(build(), name="difference")

    def ask(self, number: int) -> None:
        x = np.full(ELEMENTS, number, np.float32)
        if self._client.call(self._function, {"x": x}).result().any():
            raise SystemExit("x - x is not 0: the other client got a wrong answer")

    def latencies(self, go_on: Callable[[], bool]) -> list[float]:
        """Seconds of requests, one at a time, that begin at a pace."""
        found: list[float] = []
        due_s = perf_counter()
        while go_on():
            began_s = perf_counter()
            self.ask(len(found))
            found.append(perf_counter() - began_s)
            due_s = max(due_s + 1 / OTHERS_RATE, began_s)
            threading.Event().wait(max(due_s - perf_counter(), 0))
        return found


if __name__ == "__main__":
    main()
