"""Counts the devices that functions and clients have ended, and refuses those that have ended too many.

A function over its limit does not run again until it is pardoned. A client has a budget of faults that refills with
time. The budget is necessary: a client that changes one literal has a new function, with no faults, each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from kaas.errors import Quarantined
from kaas.store import FAULTS, Store, decoded
from kaas.wire.status.status import QuarantineStatus

STORY_LENGTH = 10
"""Number of stories that are kept of a function or client: those of its newest faults."""
CLIENT_WINDOW_S = 3600.0
"""How long a fault counts against the budget of its client."""
_CLIENT = "client:"
"""Prefix of a client's key. Keys of functions are hex digits, so the two never collide."""


class _Record(msgspec.Struct):
    """Faults of a function or a client.

    Fields:
        client: of the last fault. task: the kTask's key, "" of an eTask.
        times_s: times of a client's faults that count against its budget, in seconds since 1970.
    """

    label: str
    faults: int = 0
    story: list[str] = []
    client: str = ""
    task: str = ""
    times_s: list[float] = []


class Quarantine:
    """The faults of functions and clients, and the limits above which requests are refused.

    Args:
        allowed: devices that a function may end, alone on them, before it is in quarantine.
        client_allowed: devices that all functions of one client may end within CLIENT_WINDOW_S; None for any number.
        store: where faults are kept, so that a pool that starts again has them.
        wall_s: returns the time in seconds since 1970, which is read once: the operator may set it meanwhile. clock_s:
            returns a time that runs on.
    """

    def __init__(
        self,
        allowed: int,
        store: Store | None = None,
        client_allowed: int | None = None,
        wall_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed, self._client_allowed = allowed, client_allowed
        self._store, self._clock_s = store, clock_s
        self._began_s = wall_s() - clock_s()
        self.records: dict[str, _Record] = {}
        if store is not None:
            self.open(store)

    def open(self, store: Store) -> None:
        """Read the faults of a store, and write later ones there."""
        self._store = store
        self.records = decoded(store, FAULTS, msgspec.msgpack.Decoder(_Record).decode)
        now_s = self._now_s()
        for record in self.records.values():  # no fault lies ahead, whatever the clock said then
            record.times_s = [min(time_s, now_s) for time_s in record.times_s]

    def _now_s(self) -> float:
        return self._began_s + self._clock_s()

    def fault(self, function: str, label: str, story: str, client: str = "", task: str = "") -> bool:
        """Count a fault of a function that ended a device, alone on it. Return True if it is in quarantine now."""
        record = self.records.setdefault(function, _Record(label))
        record.client, record.task = client, task
        self._count(function, record, record.faults + 1, story)
        return function in self

    def client_fault(self, client: str, story: str) -> bool:
        """Count a fault of a client. Return True if the client is over its budget now."""
        if self._client_allowed is None:
            return False
        key, now_s = _CLIENT + client, self._now_s()
        record = self.records.setdefault(key, _Record(client, client=client))
        record.times_s = [*_counting(record, now_s), now_s][-self._client_allowed - 1 :]
        self._count(key, record, len(record.times_s), story)
        return self._wait_s(record) > 0

    def _count(self, key: str, record: _Record, faults: int, story: str) -> None:
        record.faults, record.story = faults, [*record.story, story][-STORY_LENGTH:]
        if self._store is not None:
            self._store.put(FAULTS, {key: msgspec.msgpack.encode(record)})

    def faults(self, function: str) -> int:
        """Return how many devices a function has ended, alone on them."""
        record = self.records.get(function)
        return 0 if record is None else record.faults

    def __contains__(self, function: str) -> bool:
        record = self.records.get(function)
        return record is not None and record.faults > self._allowed

    def refusal(self, function: str, client: str) -> Quarantined | None:
        """Return the error for requests of a function in quarantine, or of a client over its budget; else None."""
        if not self.records:
            return None
        if function in self:
            return self._function_error(function, self.records[function])
        record = self.records.get(_CLIENT + client)
        if record is None or (wait_s := self._wait_s(record)) <= 0:
            return None
        return self._client_error(record, wait_s)

    def _wait_s(self, record: _Record) -> float:
        """Return the seconds until a client has a fault left of its budget."""
        now_s = self._now_s()
        times_s = _counting(record, now_s)
        if self._client_allowed is None or len(times_s) <= self._client_allowed:
            return 0.0
        return times_s[0] + CLIENT_WINDOW_S - now_s

    def _function_error(self, key: str, record: _Record) -> Quarantined:
        ended = f"it ended {record.faults} device{'s'[: record.faults > 1]} on which it ran alone"
        message = (
            f"{record.label!r} is in quarantine and does not run: {ended}. "
            f"The operator can pardon it: kaas.pardon(f) or `kaas pardon {key}`. Last: {record.story[-1]}"
        )
        return Quarantined(message, function=record.label, faults=record.faults, story=tuple(record.story))

    def _client_error(self, record: _Record, wait_s: float) -> Quarantined:
        ended = f"its requests ended {record.faults} devices within {CLIENT_WINDOW_S / 60:g} minutes"
        message = (
            f"requests of client {record.label!r} are not run for {wait_s:.0f} s: {ended}, and "
            f"{self._client_allowed} are allowed. The operator can forget them: `kaas pardon {_CLIENT}{record.label}`. "
            f"Last: {record.story[-1]}"
        )
        story = tuple(record.story)
        return Quarantined(message, function="", client=record.label, faults=record.faults, story=story, retry_s=wait_s)

    def pardon(self, function: str) -> bool:
        """Forget faults, and return True if a function or client was in quarantine.

        Args:
            function: key of a function, key of a kTask for all its functions, or `client:` and a client's name.
        """
        keys = [key for key, record in self.records.items() if function in (key, record.task)]
        held = any(self._held(key, self.records[key]) for key in keys)
        for key in keys:
            del self.records[key]
        if self._store is not None and keys:
            self._store.remove(FAULTS, keys)
        return held

    def _held(self, key: str, record: _Record) -> bool:
        return self._wait_s(record) > 0 if key.startswith(_CLIENT) else record.faults > self._allowed

    def status(self) -> tuple[QuarantineStatus, ...]:
        """Return the functions and clients in quarantine."""
        return tuple(
            QuarantineStatus(_shown(key, record), key, record.faults, record.story[-1], record.client)
            for key, record in self.records.items()
            if self._held(key, record)
        )


def _counting(record: _Record, now_s: float) -> list[float]:
    return [time_s for time_s in record.times_s if now_s - time_s < CLIENT_WINDOW_S]


def _shown(key: str, record: _Record) -> str:
    return f"all functions of client {record.label!r}" if key.startswith(_CLIENT) else record.label
