"""Quotas of clients, and the decision if a further request is within them. The module does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, inf, isfinite

import msgspec

from kaas.errors import InvalidConfig, QuotaExceeded

WINDOW_S = 60
"""The window of device seconds: they count for so many seconds, and for up to a second more."""
PLACE_RETRY_S = 0.05
"""The retry delay with too many open requests: one of them must end first, and the client knows when."""
ROUNDING_S = 1e-6
"""Tolerance, so that a retry after the reported delay is not refused by a rounding error."""


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Quotas of one client; None for no limit.

    Fields:
        requests_per_s: on average. burst: requests that may come at once; None: those of a second, at least one.
        concurrent_requests: requests without a reply.
        device_s_per_minute: seconds of all devices for its kernels in any minute. Beyond it new requests are refused;
            running ones are not stopped.
        stored_bytes, library_bytes: of its objects and its code at the server.
        kernels: of all its functions together. task_kernels: of one kTask.
        build_s_per_minute: processor seconds of the server in any minute for building its kTasks. Beyond it new
            registrations are refused; running builds are not stopped.
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
        """True if every request is within them."""
        return (self.requests_per_s, self.concurrent_requests, self.device_s_per_minute) == (None, None, None)

    @property
    def at_once(self) -> int:
        """The number of requests that may come at once."""
        return self.burst or max(1, floor(self.requests_per_s or 1))


def _check(name: str, value: float | None, least: float | None) -> None:
    """Check the value of a field.

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
    """The reason of a refusal.

    Fields:
        quota: the field of `Quotas`. limit: its value. used: by the client, in the same unit.
        retry_s: seconds until it is taken, if no other request comes; None: only the client can make room.
    """

    quota: str
    limit: float
    used: float
    retry_s: float | None

    def error(self, client: str) -> QuotaExceeded:
        """Return the error for the client."""
        again = {} if self.retry_s is None else {"retry_s": self.retry_s}
        when = f"; again in {self.retry_s:.3f} s" if again else ""
        message = f"{client!r} may have {self.quota} of {self.limit:g} and has {self.used:g}{when}"
        return QuotaExceeded(message, client=client, quota=self.quota, limit=self.limit, used=self.used, **again)


class Window:
    """Nanoseconds of the last minute, counted by the second in which they came."""

    def __init__(self, seconds: Iterable[tuple[int, int]] = ()) -> None:
        """seconds: of an earlier window, (second, nanoseconds) in order."""
        self._seconds = deque([second, nanoseconds] for second, nanoseconds in seconds)
        self._total = sum(nanoseconds for _, nanoseconds in self._seconds)

    def add(self, now_s: float, nanoseconds: int) -> None:
        """Add nanoseconds. now_s: not before the last call's."""
        second = floor(now_s)
        self._total += nanoseconds
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += nanoseconds
        else:
            self._seconds.append([second, nanoseconds])
            self._expire(now_s)

    def total(self, now_s: float) -> int:
        """Return the nanoseconds of the last minute."""
        self._expire(now_s)
        return self._total

    def below(self, now_s: float, limit: float) -> float:
        """Return the seconds until the total is below a limit, if nothing is added; inf: never."""
        total = self.total(now_s)
        if total < limit:
            return 0.0
        for second, nanoseconds in self._seconds:
            total -= nanoseconds
            if total < limit:
                return second + WINDOW_S + 1 - now_s
        return inf

    def seconds(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs for the constructor."""
        return tuple((second, nanoseconds) for second, nanoseconds in self._seconds)

    def _expire(self, now_s: float) -> None:
        oldest = floor(now_s) - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest:
            self._total -= self._seconds.popleft()[1]


class Allowance:
    """Admission of one client's requests. Times are seconds on one clock that never goes back.

    Fields:
        open: number of admitted requests without a reply. unlimited: True if all requests are admitted.
    """

    def __init__(self, quotas: Quotas = UNLIMITED, window: Window | None = None) -> None:
        """window: of device time, in nanoseconds; the caller adds measured times to it."""
        self.quotas = quotas
        self.unlimited = quotas.any_request
        self.window = window or Window()
        self.open = 0
        self._next_s = -inf  # when a full burst may come again

    def change(self, quotas: Quotas, now_s: float) -> None:
        """Replace the quotas."""
        if quotas.requests_per_s is not None:
            self._next_s = min(self._next_s, now_s + quotas.at_once / quotas.requests_per_s)
        self.quotas = quotas
        self.unlimited = quotas.any_request

    def admit(self, now_s: float) -> Refusal | None:
        """Admit a request, or return the reason of its refusal and change nothing."""
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
        """Count an admitted request as ended."""
        self.open -= 1
