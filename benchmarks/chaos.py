"""Every request gets one correct reply or an error with its reason while executors and the pool are killed.

Four clients send requests in an open loop at 70 % of the throughput of software GPUs with modelled kernels. The first
run is quiet. In the second run an executor is killed every 5 s, the pool once, and every 10 s a kernel ends its device:
every other time a kernel of a new function, else one of a function that repeats this until it is in quarantine.
Requests sent within 15 s after the pool's end are not in the 99th percentile; the outage is the longest time without a
reply then.

    python -m benchmarks.chaos [--path ray|zmq] [--seconds S] [--json]

The requests go by kaas.invoke, over Ray, or with --path zmq by kaas.call.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported
os.environ.setdefault("RAY_ADDRESS", "local")  # its own Ray: pools of other programs must not be killed

import numpy as np
import ray

import kaas
import softgpu
from benchmarks.queueing import UNSTABLE, is_stable
from benchmarks.report import parser, report
from kaas.api.ray_session import plain

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
CLIENTS = ("ada", "bob", "cyd", "dan")
DEVICES = 4
DEVICE_BYTES = 64 << 20
KERNEL_S = 0.02
LOAD = 0.7
N = 256
"""The number of elements of an input: each is the number of its request."""
SECONDS = 40.0
QUIET_SECONDS = 10.0
PEAK_REQUESTS = 400
IN_FLIGHT = 4 * DEVICES
EXECUTOR_EVERY_S = 5.0
POISON_EVERY_S = 10.0
LEFT_OUT_S = 15.0
PATHS = ("ray", "zmq")
TIMEOUT_S = 90.0
"""The time for replies after the last request: more than the run limit."""


@dataclass(slots=True, eq=False)
class Sent:
    """A request and its outcome. With `poison` its kernel ends its device."""

    number: int
    at_s: float
    future: Future[Any]
    poison: bool = False
    answered_s: float | None = None

    @property
    def latency_s(self) -> float:
        assert self.answered_s is not None, "it was answered"
        return self.answered_s - self.at_s

    def outcome(self) -> str:
        """The outcome: "right", the name of the error, "unanswered", or else "wrong"."""
        if not self.future.done():
            return "unanswered"
        error = self.future.exception()
        if error is not None:
            return type(plain(error)).__name__ if isinstance(error, kaas.KaasError) else "wrong"
        expected = np.float32(self.number) * np.float32(0.5) + np.float32(1)
        return "wrong" if self.poison or not (self.future.result() == expected).all() else "right"


@dataclass(slots=True, eq=False)
class Load:
    """Sends requests and notes the times of their replies."""

    function: Any
    chance: random.Random
    path: str
    sent: list[Sent] = field(default_factory=list)

    def send(self) -> Sent:
        number = len(self.sent)
        client = CLIENTS[self.chance.randrange(len(CLIENTS))]
        x = np.full(N, number, np.float32)
        return self.note(number, self.function, x, client)

    def poison(self, which: int) -> Sent:
        """Send a poisoned request of the function named by `which`."""
        x = np.zeros(N, np.float32)
        return self.note(len(self.sent), task(which), x, "eve", poison=True)

    def note(self, number: int, function: Any, x: Any, client: str, *, poison: bool = False) -> Sent:
        at_s = monotonic()
        if self.path == "ray":
            answer: Future[Any] = kaas.invoke(function, {"x": x}, client=client).future()
        else:
            answer = awaited(kaas.call(function, {"x": x}, client=client))
        sent = Sent(number, at_s, answer, poison)
        self.sent.append(sent)

        def answered(_: Future[Any]) -> None:
            sent.answered_s = monotonic()

        sent.future.add_done_callback(answered)
        return sent

    def open_loop(self, rate: float, seconds: float) -> list[Sent]:
        """Send requests with Poisson arrivals, without waiting for replies."""
        first, ends_s = len(self.sent), monotonic() + seconds
        due_s = monotonic()
        while due_s < ends_s:
            threading.Event().wait(max(due_s - monotonic(), 0))
            self.send()
            due_s += self.chance.expovariate(rate)
        sent = self.sent[first:]
        wait([one.future for one in sent], timeout=TIMEOUT_S)
        return sent

    def peak(self) -> float:
        """Return the requests a second of a closed loop."""
        began, pending = monotonic(), set[Any]()
        for _ in range(PEAK_REQUESTS):
            pending.add(self.send().future)
            while len(pending) >= IN_FLIGHT:
                pending = set(wait(pending, return_when="FIRST_COMPLETED").not_done)
        wait(pending)
        return PEAK_REQUESTS / (monotonic() - began)


def awaited(call: kaas.Future) -> Future[Any]:
    """Return the reply as `wait` takes it."""
    answer = Future[Any]()

    def answered(_: kaas.Future) -> None:
        error = call.exception()
        if error is None:
            answer.set_result(call.result())
        else:
            answer.set_exception(error)

    call.add_done_callback(answered)
    return answer


def task(poison: int | None = None) -> kaas.KTask:
    """Return the kTask of y = x * 0.5 + w.

    With `poison` it has no w, so that its kernel reads at address 0; each number gives another function.
    """
    x, w, y = (kaas.Buffer(name, N, "float32") for name in "xwy")
    rounds = 1 if poison is None else 2 + poison
    args: list[Any] = [kaas.In(x), kaas.In(w) if poison is None else kaas.Null, kaas.Out(y)]
    kernel = kaas.Kernel(kaas.Library.from_file(PTX), "step", 1, N, [*args, kaas.i32(N), kaas.i32(rounds)])
    return kaas.KTask([kernel], [y], name=None if poison is None else f"poison-{poison}")


class Chaos:
    """Kills and poisons from its own thread, since requests to a dead pool take long."""

    def __init__(self, load: Load, seconds: float, *, pool_kill: bool) -> None:
        self._load = load
        self._plan = sorted(self._events(seconds, pool_kill), key=lambda event: event[0])
        self._thread = ThreadPoolExecutor(1)
        self.done: Counter[str] = Counter()
        self.pool_killed_s: float | None = None
        self._pool_pid = kaas.status().pid

    def _events(self, seconds: float, pool_kill: bool) -> Iterator[tuple[float, Callable[[], None]]]:
        for turn in range(1, int(seconds / EXECUTOR_EVERY_S)):
            yield turn * EXECUTOR_EVERY_S, self._kill_executor
        for turn in range(int(seconds / POISON_EVERY_S)):
            which = turn % 2 and turn  # every other poison is of the same function
            yield (turn + 0.25) * POISON_EVERY_S, partial(self._poison, which)
        if pool_kill:
            yield seconds / 2 + EXECUTOR_EVERY_S / 2, self._kill_pool

    def __enter__(self) -> Chaos:
        self._wreaked = self._thread.submit(self._wreak)
        return self

    def __exit__(self, *_: object) -> None:
        self._wreaked.result()
        self._thread.shutdown()

    def _wreak(self) -> None:
        began_s = monotonic()
        for at_s, what in self._plan:
            threading.Event().wait(max(began_s + at_s - monotonic(), 0))
            what()

    def _kill_executor(self) -> None:
        try:
            pids = [device.info.pid for device in kaas.status().devices if device.info is not None]
        except kaas.errors.PoolStopped:
            pids = []  # the executor is being replaced
        if pids:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(self._load.chance.choice(pids), signal.SIGKILL)
                self.done["executors killed"] += 1

    def _kill_pool(self) -> None:
        self.pool_killed_s = monotonic()
        os.kill(self._pool_pid, signal.SIGKILL)
        self.done["pools killed"] += 1

    def _poison(self, which: int) -> None:
        self._load.poison(which)
        self.done["poison sent"] += 1


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--seconds", type=float, default=SECONDS, help="length of the run with kills")
    options.add_argument("--path", choices=PATHS, default=PATHS[0], help="by kaas.invoke on Ray, or by kaas.call")
    options.add_argument("--no-pool-kill", action="store_true", help="kill executors and poison only")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    model = softgpu.Model(kernels={"step": softgpu.Takes(KERNEL_S)})
    kaas.init(devices=[kaas.Device("software", DEVICE_BYTES, model)] * DEVICES)
    load = Load(kaas.register(task(), {"w": np.ones(N, np.float32)}), random.Random(given.seed), given.path)
    while any(device.info is None for device in kaas.status().devices):
        pass  # otherwise the peak would be that of some executors only
    for _ in range(2):  # the first is the warm-up
        peak = load.peak()
    rate = LOAD * peak
    quiet = load.open_loop(rate, QUIET_SECONDS)
    with Chaos(load, given.seconds, pool_kill=not given.no_pool_kill) as chaos:
        hard = load.open_loop(rate, given.seconds)
    bars, detail = judge(quiet, hard, chaos.pool_killed_s)
    detail |= {"requests_per_s": rate, "kernel_ms": KERNEL_S * 1e3, "devices": DEVICES, **chaos.done}
    report("chaos", bars, {"path": given.path, **detail}, given.json)
    kaas.shutdown()
    ray.shutdown()


def judge(quiet: Sequence[Sent], hard: Sequence[Sent], pool_killed_s: float | None) -> tuple[dict[str, Any], Any]:
    """Return the bars, and the figures behind them."""
    ended = {kind: Counter(one.outcome() for one in hard if one.poison is kind) for kind in (False, True)}
    everything = ended[False] + ended[True] + Counter(one.outcome() for one in quiet)
    after_s = float("inf") if pool_killed_s is None else pool_killed_s
    counted = [one for one in hard if not after_s <= one.at_s < after_s + LEFT_OUT_S and one.outcome() == "right"]
    quiet_s, hard_s = (float(np.quantile([one.latency_s for one in some], 0.99)) for some in (quiet, counted))
    latencies_s = [one.latency_s for one in quiet]  # a queue that grows in the quiet run would hide the effect
    bars: dict[str, Any] = {
        "unanswered": (everything["unanswered"], "<=", 0),
        "wrong": (everything["wrong"], "<=", 0),
        "p99_over_quiet": (hard_s / quiet_s if is_stable(latencies_s, QUIET_SECONDS) else UNSTABLE, "<=", 20),
    }
    if pool_killed_s is not None:
        bars["pool_outage_s"] = (outage_s(hard, pool_killed_s), "<=", 5)
    detail = {
        "p99_quiet_ms": quiet_s * 1e3,
        "p99_ms": hard_s * 1e3,
        "requests": len(hard),
        **{f"ended: {outcome}": count for outcome, count in sorted(ended[False].items())},
        **{f"poison ended: {outcome}": count for outcome, count in sorted(ended[True].items())},
    }
    return bars, detail


def outage_s(sent: Sequence[Sent], killed_s: float) -> float:
    """Return the longest time without a reply after the pool's end."""
    window = (killed_s, killed_s + LEFT_OUT_S)
    answers = sorted(one.answered_s for one in sent if one.answered_s and window[0] <= one.answered_s < window[1])
    return max(later - earlier for earlier, later in pairwise([killed_s, *answers, killed_s + LEFT_OUT_S]))


if __name__ == "__main__":
    main()
