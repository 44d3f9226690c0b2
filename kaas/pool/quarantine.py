"""The functions that have ended devices, with their stories; those that did so too often are run no more."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kaas.errors import Quarantined
from kaas.store import FAULTS, Store

STORY_LENGTH = 10
"""Faults of a function of which the story is kept, the newest."""


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """A function in quarantine. function: its label, and `key` what names it exactly. reason: of its last fault.
    client: whose request that was."""

    function: str
    key: str
    faults: int
    reason: str
    client: str = ""


class _Record(msgspec.Struct):
    """client: of the last fault. task: the kTask's key, "" of an eTask."""

    label: str
    faults: int = 0
    story: list[str] = []
    client: str = ""
    task: str = ""


class Quarantine:
    """allowed: how many devices a function may end, alone on them, before it is in quarantine. store: where it stands,
    so that a pool that starts again knows."""

    def __init__(self, allowed: int, store: Store | None = None) -> None:
        self._allowed = allowed
        self._store = store
        kept = {} if store is None else store.read(FAULTS)
        self._records = {key: msgspec.msgpack.decode(record, type=_Record) for key, record in kept.items()}

    def fault(self, function: str, label: str, story: str, client: str = "", task: str = "") -> bool:
        """A function ended a device, alone on it. Whether it is in quarantine now."""
        record = self._records.setdefault(function, _Record(label))
        record.faults += 1
        record.client, record.task = client, task
        record.story = [*record.story, story][-STORY_LENGTH:]
        if self._store is not None:
            self._store.put(FAULTS, {function: msgspec.msgpack.encode(record)})
        return function in self

    def faults(self, function: str) -> int:
        """How many devices a function has ended, alone on them."""
        record = self._records.get(function)
        return 0 if record is None else record.faults

    def __contains__(self, function: str) -> bool:
        record = self._records.get(function)
        return record is not None and record.faults > self._allowed

    def error(self, function: str) -> Quarantined:
        """What requests of a function in quarantine are answered with."""
        record = self._records[function]
        ended = f"it ended {record.faults} device{'s'[: record.faults > 1]} on which it ran alone"
        message = f"{record.label!r} is not run any more: {ended}. Last: {record.story[-1]}"
        return Quarantined(message, function=record.label, faults=record.faults, story=tuple(record.story))

    def pardon(self, function: str) -> bool:
        """Forget the faults of a function, or of all functions of a kTask, by key. Whether one was in quarantine."""
        keys = [key for key, record in self._records.items() if function in (key, record.task)]
        held = any(key in self for key in keys)
        for key in keys:
            del self._records[key]
        if self._store is not None and keys:
            self._store.remove(FAULTS, keys)
        return held

    def status(self) -> tuple[QuarantineStatus, ...]:
        return tuple(
            QuarantineStatus(record.label, key, record.faults, record.story[-1], record.client)
            for key, record in self._records.items()
            if key in self
        )
