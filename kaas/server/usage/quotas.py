"""What a client may have, and whether something more is within it: values in, decisions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, inf, isfinite

import msgspec

from kaas.errors import InvalidConfig, QuotaExceeded

WINDOW_S = 60
"""Of device seconds: they count for so long, and for up to a second more."""
PLACE_RETRY_S = 0.05
"""When to ask again who has too many requests open: one of these has to end first, and the client knows when."""
ROUNDING_S = 1e-6
"""Who asks again when it was told to is not too early by a rounding error."""


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one client may have; None: as much as there is.

    Fields:
        requests_per_s: on average. burst: of them, that may come at once; None: those of a second, at least one.
        concurrent_requests: that are not answered yet.
        device_s_per_minute: seconds that its kernels may take of all devices in any minute. What runs is not stopped:
            beyond it nothing new is taken in.
        stored_bytes, library_bytes: of its objects, of its code, that the server keeps.
        kernels: of all its functions together. task_kernels: of one kTask.
        build_s_per_minute: processor seconds that the server may take in any minute to build the kTasks that it
            registers. What is being built is not stopped: beyond it nothing new is built.
    """

    requests_per_s: float | None = None
    burst: int | None = None
    concurrent_requests: int | None = None
    device_s_per_minute: float | None = None
    stored_bytes: int | None = None
    library_bytes: int | None = None
    kernels: int | None = None
    task_kernels: int | None = None
    build_s_per_minute: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_s", "burst", "concurrent_requests", "device_s_per_minute"):
            _check(name, getattr(self, name), 0 if name == "device_s_per_minute" else None)
        for name in ("stored_bytes", "library_bytes", "kernels", "task_kernels", "build_s_per_minute"):
            _check(name, getattr(self, name), 0)
        if self.burst is not None and self.requests_per_s is None:
            raise InvalidConfig("burst means nothing without requests_per_s", field="burst")

    @property
    def any_request(self) -> bool:
        """Whether every request is within them."""
        return (self.requests_per_s, self.concurrent_requests, self.device_s_per_minute) == (None, None, None)

    @property
    def at_once(self) -> int:
        """Requests that may come at once, of those per second."""
        return self.burst or max(1, floor(self.requests_per_s or 1))


def _check(name: str, value: float | None, least: float | None) -> None:
    """
    Raises:
        InvalidConfig
    """
    if value is None:
        return
    if isinstance(value, bool) or not isfinite(value) or (value <= 0 if least is None else value < least):
        wanted = "a positive number" if least is None else "a number from 0 on"
        raise InvalidConfig(f"{name} is {wanted}, not {value!r}", field=name)


UNLIMITED = Quotas()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not taken in.

    Fields:
        quota: the field of `Quotas`. limit: its value. used: what the client has, of the same unit.
        retry_s: when it will be taken in, if nothing else comes; None: only the client can make room.
    """

    quota: str
    limit: float
    used: float
    retry_s: float | None

    def error(self, client: str) -> QuotaExceeded:
        """Return what the client is told."""
        again = {} if self.retry_s is None else {"retry_s": self.retry_s}
        when = f"; again in {self.retry_s:.3f} s" if again else ""
        message = f"{client!r} may have {self.quota} of {self.limit:g} and has {self.used:g}{when}"
        return QuotaExceeded(message, client=client, quota=self.quota, limit=self.limit, used=self.used, **again)


class Window:
    """Nanoseconds of the last minute, counted by the second in which they came."""

    def __init__(self, seconds: Iterable[tuple[int, int]] = ()) -> None:
        """seconds: of an earlier one, (second, nanoseconds) in order."""
        self._seconds = deque([second, nanoseconds] for second, nanoseconds in seconds)
        self._total = sum(nanoseconds for _, nanoseconds in self._seconds)

    def add(self, now_s: float, nanoseconds: int) -> None:
        """now_s: never before what was added last."""
        second = floor(now_s)
        self._total += nanoseconds
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += nanoseconds
        else:
            self._seconds.append([second, nanoseconds])
            self._expire(now_s)

    def total(self, now_s: float) -> int:
        self._expire(now_s)
        return self._total

    def below(self, now_s: float, limit: float) -> float:
        """In how many seconds the total is below a limit, if nothing is added; inf: never."""
        total = self.total(now_s)
        if total < limit:
            return 0.0
        for second, nanoseconds in self._seconds:
            total -= nanoseconds
            if total < limit:
                return second + WINDOW_S + 1 - now_s
        return inf

    def seconds(self) -> tuple[tuple[int, int], ...]:
        """As the constructor takes them."""
        return tuple((second, nanoseconds) for second, nanoseconds in self._seconds)

    def _expire(self, now_s: float) -> None:
        oldest = floor(now_s) - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest:
            self._total -= self._seconds.popleft()[1]


class Allowance:
    """Which requests of one client are taken in. Times are seconds on any one clock that never goes back.

    Fields:
        open: requests that were taken in and have not left. unlimited: all are taken in, whenever they come.
    """

    def __init__(self, quotas: Quotas = UNLIMITED, window: Window | None = None) -> None:
        """window: of device time, in nanoseconds; whoever measures it adds to it."""
        self.quotas = quotas
        self.unlimited = quotas.any_request
        self.window = window or Window()
        self.open = 0
        self._next_s = -inf  # when all that may come at once may come again, but for what has come

    def change(self, quotas: Quotas, now_s: float) -> None:
        """From now on these count."""
        if quotas.requests_per_s is not None:
            self._next_s = min(self._next_s, now_s + quotas.at_once / quotas.requests_per_s)
        self.quotas = quotas
        self.unlimited = quotas.any_request

    def admit(self, now_s: float) -> Refusal | None:
        """A request has come: it is taken in, or refused and nothing changed."""
        quotas = self.quotas
        if quotas.concurrent_requests is not None and self.open >= quotas.concurrent_requests:
            return Refusal("concurrent_requests", quotas.concurrent_requests, self.open, PLACE_RETRY_S)
        if quotas.device_s_per_minute is not None:
            wait_s = self.window.below(now_s, quotas.device_s_per_minute * 1e9)
            if wait_s > 0:
                used_s = self.window.total(now_s) / 1e9
                retry_s = None if wait_s == inf else wait_s
                return Refusal("device_s_per_minute", quotas.device_s_per_minute, used_s, retry_s)
        if quotas.requests_per_s is not None:
            each_s = 1 / quotas.requests_per_s
            begun_s = max(self._next_s, now_s) + each_s
            early_s = begun_s - quotas.at_once * each_s - now_s
            if early_s > ROUNDING_S:
                return Refusal("requests_per_s", quotas.requests_per_s, quotas.requests_per_s, early_s)
            self._next_s = begun_s
        self.open += 1
        return None

    def leave(self) -> None:
        """One that was taken in is answered."""
        self.open -= 1
