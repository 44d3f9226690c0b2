"""The store of a running pool, which goes on while the store cannot be written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from kaas.store import Store

AGAIN_S = 5.0
"""Seconds after which changes are written again that could not be written."""

_log = logging.getLogger(__name__)


class PatientStore:
    """A store whose changes raise no error: those that cannot be written, as on a full disk, are written later.

    Use an object of this class from one event loop only, from `open` to `close`.
    """

    def __init__(self, store: Store) -> None:
        """store: is open already."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._unwritten: dict[tuple[str, str], bytes | None] = {}  # by kind and key; None: to be removed
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Do nothing: the store is open."""

    def put(self, kind: str, entries: Mapping[str, bytes]) -> None:
        """Add entries, or replace those of the same keys."""
        self._change({(kind, key): value for key, value in entries.items()})

    def remove(self, kind: str, keys: Iterable[str]) -> None:
        """Remove entries; keys without an entry are ignored."""
        self._change({(kind, key): None for key in keys})

    def read(self, kind: str) -> dict[str, bytes]:
        """Return all entries of a kind, in the order in which their keys came."""
        entries = {**self._store.read(kind), **self._changes(kind)}
        return {key: value for key, value in entries.items() if value is not None}

    def clear(self, *kinds: str) -> None:
        """Remove all entries of these kinds."""
        for kind in kinds:
            self._written(kind)
        try:
            self._store.clear(*kinds)
        except Exception:  # noqa: BLE001 - a user's own store may raise any error
            for kind in kinds:
                self.remove(kind, self._store.read(kind))

    def close(self) -> None:
        """Write what is not written yet, if that is possible now. The store stays open."""
        self._change({})
        if self._timer is not None:
            self._timer.cancel()

    def _change(self, entries: Mapping[tuple[str, str], bytes | None]) -> None:
        self._unwritten |= entries
        if self._timer is not None:
            self._timer.cancel()
        failed_before, self._timer = self._timer is not None, None
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - a user's own store may raise any error
            if not failed_before:
                _log.error("%r cannot be written, and the pool goes on: %s", self._store, error)
            self._timer = self._loop.call_later(AGAIN_S, self._change, {})
        else:
            if failed_before:
                _log.info("%r can be written again", self._store)

    def _write(self) -> None:
        for kind in {kind for kind, _ in self._unwritten}:
            changes = self._changes(kind)
            if new := {key: value for key, value in changes.items() if value is not None}:
                self._store.put(kind, new)
            if gone := changes.keys() - new.keys():
                self._store.remove(kind, gone)
            self._written(kind)

    def _changes(self, kind: str) -> dict[str, bytes | None]:
        return {key: value for (of, key), value in self._unwritten.items() if of == kind}

    def _written(self, kind: str) -> None:
        self._unwritten = {name: value for name, value in self._unwritten.items() if name[0] != kind}
