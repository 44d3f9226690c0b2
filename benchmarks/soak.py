"""Executors and clients are killed and the server is restarted: every remote request gets one correct reply.

    python -m benchmarks.soak [--minutes M] [--json]

Four programs outside the cluster send requests through CURVE in an open loop, at 70 % of the throughput of software
GPUs with modelled kernels. A random executor is killed every 30 s, a random program every 10 s, and the server once,
with SIGKILL, in the first third. The successor of a killed program sends its requests without a reply again, with the
same idempotency keys. Every tenth request is sent twice, under one key: `twice` counts the runs that the server has
charged beyond one for each key. `memory_growth` compares the median memory of server and executors in the last third
and in the second.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import kaas
from benchmarks.remote_load import FUNCTION, N, task
from benchmarks.report import parser, report
from benchmarks.served import Memory, Server

CLIENTS = ("ada", "bob", "cyd", "dan")
DEVICES = 4
KERNEL_S = 0.02
LOAD = 0.7
MINUTES = 2.0
EXECUTOR_EVERY_S, CLIENT_EVERY_S = 30.0, 10.0
RESTART_AFTER_S = 60.0
"""The latest time of the restart."""
REPLIES_SHARE, REPLIES_S = 1 / 8, 15
"""Share of the run, and the least seconds, for which the server keeps finished replies. Its memory grows as long: by
the default, ten minutes, it would grow in all of a short run, and hide growth that does not end."""
PEAK_REQUESTS, IN_FLIGHT = 400, 4 * DEVICES
TIMEOUT_S = 120.0


@dataclass(slots=True, eq=False)
class Program:
    """The programs of one client, one after the other.

    Fields:
        sent: requests that are known to be sent. outcomes: the outcome of each reply, by the request's number.
    """

    name: str
    server: Server
    rate: float
    chance: random.Random
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None
    sent: list[int] = field(default_factory=list)
    outcomes: dict[int, list[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start the first program, or a successor, which sends the requests without a reply again."""
        given = (self.server.address, self.server.keys(self.name), self.name, self.rate, len(self.sent))
        command = [sys.executable, "-m", "benchmarks.remote_load", *map(str, given), str(self.chance.random())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        again = [number for number in self.sent if number not in self.outcomes]
        self.process.stdin.write("".join(f"{number}\n" for number in again) + "\n")
        self.process.stdin.flush()
        self.reader = threading.Thread(target=self._read, args=(self.process,))
        self.reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        known = set(self.sent)
        for line in process.stdout:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                return  # the program was killed in the middle of a line
            if "sent" in entry:
                if entry["sent"] not in known:
                    self.sent.append(entry["sent"])
            else:
                self.outcomes.setdefault(entry["answered"], []).append(entry["outcome"])
                self.seconds.append(entry["s"])

    def kill(self) -> None:
        assert self.process is not None
        assert self.reader is not None
        self.process.kill()
        self.process.wait()
        self.reader.join()

    def end(self) -> None:
        """End the program after its replies."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.reader is not None
        self.process.stdin.close()
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join()


class Havoc:
    """Kills processes from its own thread."""

    def __init__(self, server: Server, programs: Sequence[Program], chance: random.Random, seconds: float) -> None:
        self._server, self._programs, self._chance = server, programs, chance
        self._plan = sorted(self._events(seconds), key=lambda event: event[0])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wreak)
        self.done: Counter[str] = Counter()
        self.outage_s = 0.0

    def _events(self, seconds: float) -> Iterator[tuple[float, Callable[[], None]]]:
        for turn in range(1, int(seconds / EXECUTOR_EVERY_S) + 1):
            yield (turn - 0.5) * EXECUTOR_EVERY_S, self._kill_executor
        for turn in range(1, int(seconds / CLIENT_EVERY_S)):
            yield turn * CLIENT_EVERY_S, self._kill_client
        yield min(seconds / 4, RESTART_AFTER_S), self._restart

    def __enter__(self) -> Havoc:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until all of the plan is done, which is later than planned on a slow machine."""
        if kind is not None:
            self._ended.set()
        self._thread.join()

    def _wreak(self) -> None:
        began_s = monotonic()
        for at_s, what in self._plan:
            if self._ended.wait(max(began_s + at_s - monotonic(), 0)):
                return
            what()

    def _kill_executor(self) -> None:
        pids = self._server.executors()
        if pids:
            os.kill(self._chance.choice(pids), signal.SIGKILL)
            self.done["executors killed"] += 1

    def _kill_client(self) -> None:
        program = self._chance.choice(self._programs)
        program.kill()
        program.start()
        self.done["clients killed"] += 1

    def _restart(self) -> None:
        began_s = monotonic()
        self._server.kill()
        self._server.start()
        self.outage_s = monotonic() - began_s
        self.done["servers killed"] += 1


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--minutes", type=float, default=MINUTES, help="length of the run with kills")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    seconds = 60 * given.minutes
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        kept_s = max(round(REPLIES_SHARE * seconds), REPLIES_S)
        server = Server(
            Path(folder),
            [*CLIENTS, "peak"],
            devices=DEVICES,
            kernels_s={"step": KERNEL_S},
            limits={"answers_s": kept_s},
        )
        server.start()
        try:
            rate = LOAD * peak(server)
            programs = [Program(name, server, rate / len(CLIENTS), chance) for name in CLIENTS]
            for program in programs:
                program.start()
            with Havoc(server, programs, chance, seconds) as havoc, Memory(server) as memory:
                threading.Event().wait(seconds)
            for program in programs:
                program.end()
            charged = server.charged()
        finally:
            server.stop()
    bars, detail = judge(programs, charged, memory, seconds)
    detail |= {"requests_per_s": rate, "kernel_ms": KERNEL_S * 1e3, "devices": DEVICES, "minutes": given.minutes,
               "replies_kept_s": kept_s, "outage_of_the_server_s": havoc.outage_s, **havoc.done}  # fmt: skip
    report("soak", bars, detail, given.json)


def peak(server: Server) -> float:
    """Return the requests a second of a closed loop."""
    x = np.zeros(N, np.float32)
    with kaas.Client(server.address, keys=server.keys("peak")) as client:
        function = client.register(task(), {"w": np.ones(N, np.float32)}, name=FUNCTION)
        for _ in range(2):  # the first is the warm-up
            began_s, pending = monotonic(), deque[kaas.Future]()
            for _ in range(PEAK_REQUESTS):
                if len(pending) == IN_FLIGHT:
                    pending.popleft().result()
                pending.append(client.call(function, {"x": x}))
            while pending:
                pending.popleft().result()
            rate = PEAK_REQUESTS / (monotonic() - began_s)
    return rate


def judge(programs: Sequence[Program], charged: Counter[str], memory: Memory, seconds: float) -> tuple[Any, Any]:
    """Return the bars, and the figures behind them."""
    outcomes = Counter(outcome for program in programs for found in program.outcomes.values() for outcome in found)
    sent = {program.name: len(program.sent) for program in programs}
    own, executors = memory.thirds(seconds)
    bars = {
        "unanswered": (sum(sent.values()) - sum(len(program.outcomes) for program in programs), "<=", 0),
        "wrong": (outcomes["wrong"], "<=", 0),
        "twice": (sum(max(charged[name] - count, 0) for name, count in sent.items()), "<=", 0),
        "memory_growth": ((own[2] + executors[2]) / (own[1] + executors[1]), "<=", 1.05),
    }
    latencies = np.concatenate([program.seconds for program in programs])
    detail = {
        "requests": sum(sent.values()),
        "charged": sum(charged[name] for name in sent),
        **{f"answers: {outcome}": count for outcome, count in sorted(outcomes.items())},
        "p50_ms": float(np.median(latencies)) * 1e3,
        "p99_ms": float(np.quantile(latencies, 0.99)) * 1e3,
        "server_mb_by_thirds": own,
        "executors_mb_by_thirds": executors,
    }
    return bars, detail


if __name__ == "__main__":
    main()
