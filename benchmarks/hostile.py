"""A client with a key attacks a server with invalid messages; the benchmark measures the effect on another client.

    python -m benchmarks.hostile [--mutated N] [--replayed N] [--json]

Another program sends 100,000 mutated frames and 10,000 replayed or cut messages, 1,000 a second, then floods of uploads
under 1,000 keys each and messages of deep structure, and meanwhile kTasks that take a minute or more to compile, one at
a time, while the other client sends 200 requests a second. The attack pauses for a moment every few seconds, until no
compiler runs, so that other work of this machine affects both measurements equally. The attacker, which would be on
another machine, has a low priority for processors.
`crashes` counts ends of the server and of its executors, and errors that the server did not expect. `other_p99` is the
other client's 99th percentile of latency during the attack, over that of the quiet moments. `memory_growth` compares
the median memory of server and executors in the last third and in the second. The server keeps finished replies up to a
limit; they are filled up before, since that would look like growth.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np

import kaas
from benchmarks.attack import READY
from benchmarks.report import parser, positive, report
from benchmarks.served import Memory, Server
from kaas.peers.overhead import ELEMENTS, subtraction

MUTATED, REPLAYED = 100_000, 10_000
ATTACKER, OTHER = "eve", "bob"
RATE = 1000.0
OTHERS_RATE = 200.0
ATTACK_S, QUIET_S = 5.0, 1.0
"""The seconds of an attack, and of the pause after it."""
KEPT_BYTES = 1 << 20
"""The limit of a client's finished replies: less than by default, or they would fill up for most of the run."""
FILL, IN_FLIGHT = 1000, 16
"""The requests whose replies exceed that limit, and the number that is open at a time."""
COMPILE_LIMIT_S = 2.0
"""The processor seconds of a compile bomb: a part of each attack."""
IDLE_S = 0.1
"""The time for which no compiler runs before a quiet moment."""
TIMEOUT_S = 60.0
"""The time limit for a reply, and for the attacker to begin or to end."""
SLOWEST = 20
"""The factor by which the attack may be slower than its pace on a busy machine."""


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--mutated", type=positive, default=MUTATED, help="number of mutated frames")
    options.add_argument("--replayed", type=positive, default=REPLAYED, help="number of replayed or cut messages")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(
            Path(folder), [ATTACKER, OTHER], limits={"answers_bytes": KEPT_BYTES}, compile_limit_s=COMPILE_LIMIT_S
        )
        with server, kaas.Client(server.address, keys=server.keys(OTHER)) as client:
            other = Other(client)
            other.fill()
            executors = set(server.executors())
            if not executors:
                raise SystemExit("no executor was found: this would measure something else")
            with attack(server, given) as attacker, Memory(server) as memory:
                began_s = monotonic()
                quiet_s, attacked_s = measure(
                    server, other, attacker, SLOWEST * (given.mutated + given.replayed) / RATE
                )
                seconds = monotonic() - began_s
                output, _ = attacker.communicate(timeout=TIMEOUT_S)
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
        "quiet_requests": len(quiet_s),
        "server_mb_by_thirds": own,
        "executors_mb_by_thirds": pool,
        **{f"ended: {what}": count for what, count in ended.items()},
        **{f"attack, {what}": count for what, count in json.loads(output).items()},
    }
    report("hostile", bars, detail, given.json)


@contextmanager
def attack(server: Server, given: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """Yield an attacker that is ready, and stopped."""
    sizes = (given.mutated, given.replayed, RATE, given.seed)
    command = [sys.executable, "-m", "benchmarks.attack", server.address, str(server.keys(ATTACKER)), *map(str, sizes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            if attacker.stdout.readline() != READY:  # an attacker that cannot begin ends by itself
                raise SystemExit("the attack did not begin")
            attacker.send_signal(signal.SIGSTOP)
            yield attacker
        finally:
            attacker.kill()


def measure(
    server: Server, other: Other, attacker: subprocess.Popen[str], limit_s: float
) -> tuple[list[float], list[float]]:
    """Return the latencies in quiet moments and under attack, until the attack ends."""
    quiet_s: list[float] = []
    attacked_s: list[float] = []
    ends_s = monotonic() + limit_s
    while attacker.poll() is None:
        if monotonic() > ends_s:
            raise SystemExit(f"the attack has not ended after {limit_s:.0f} s: this machine is too slow for it")
        compiled_s = -1.0
        while (now_s := server.compilers_s()) != compiled_s:
            compiled_s = now_s
            threading.Event().wait(IDLE_S)
        quiet_s += other.latencies(QUIET_S)
        attacker.send_signal(signal.SIGCONT)
        attacked_s += other.latencies(ATTACK_S, lambda: attacker.poll() is not None)
        attacker.send_signal(signal.SIGSTOP)
    return quiet_s, attacked_s


class Other:
    """The other client, which sends valid requests."""

    def __init__(self, client: kaas.Client) -> None:
        self._client = client
        self._function = client.register(subtraction(), name="difference")

    def _call(self, number: int) -> kaas.Future:
        return self._client.call(self._function, {"x": np.full(ELEMENTS, number, np.float32)})

    def _check(self, future: kaas.Future) -> None:
        if future.result(TIMEOUT_S).any():
            raise SystemExit("x - x is not 0: the other client got a wrong result")

    def fill(self) -> None:
        """Fill up the replies that the server keeps, and warm everything up."""
        pending = deque[kaas.Future]()
        for number in range(FILL):
            if len(pending) == IN_FLIGHT:
                self._check(pending.popleft())
            pending.append(self._call(number))
        for future in pending:
            self._check(future)

    def latencies(self, seconds: float, ended: Callable[[], bool] = lambda: False) -> list[float]:
        """Return the seconds of requests, one at a time at a pace, for a time or until a process has ended."""
        found: list[float] = []
        due_s = perf_counter()
        ends_s = due_s + seconds
        while due_s < ends_s and not ended():
            began_s = perf_counter()
            self._check(self._call(len(found)))
            found.append(perf_counter() - began_s)
            due_s = max(due_s + 1 / OTHERS_RATE, began_s)
            threading.Event().wait(max(due_s - perf_counter(), 0))
        return found


if __name__ == "__main__":
    main()
