"""Arrays that an executor has ready until the pool collects them, so that they are the pool's values and no others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

WRITTEN_AT_ONCE = 4
"""Outputs that were written back and not collected yet; who writes more waits."""


class Parcels:
    """For one life of the pool. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._packed: dict[int, Sequence[Any]] = {}
        self._written: set[int] = set()
        self._closed = False

    def pack(self, arrays: Sequence[Any]) -> int:
        """A new parcel's number."""
        with self._changed:
            return self._pack(arrays)

    def pack_written(self, array: Any) -> int | None:
        """The same for an output that is written back; waits for room. None: the pool has ended, so that nobody can
        name it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._written) < WRITTEN_AT_ONCE)
            if self._closed:
                return None
            number = self._pack([array])
            self._written.add(number)
            return number

    def collect(self, number: int) -> Sequence[Any]:
        """What is in a parcel, which is here no more.

        Raises:
            KeyError: there is no such parcel, or there was.
        """
        with self._changed:
            arrays = self._packed.pop(number)
            if number in self._written:
                self._written.remove(number)
                self._changed.notify_all()
            return arrays

    def close(self) -> None:
        """The pool has ended."""
        with self._changed:
            self._closed = True
            self._packed.clear()
            self._changed.notify_all()

    def _pack(self, arrays: Sequence[Any]) -> int:
        self._last += 1
        self._packed[self._last] = arrays
        return self._last
