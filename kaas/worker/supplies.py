"""Objects that an executor's cache lacks: asked for by the request that names them, once, and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Supplies:
    """For one life of the pool. All methods may be called from any thread."""

    def __init__(self, need: Callable[[int], None]) -> None:
        """
        Args:
            need: asks the pool for all that the request with this number names.
        """
        self._need = need
        self._changed = threading.Condition()
        self._awaited: dict[int, Sequence[Any] | Exception | None] = {}
        self._closed = False

    def ask(self, number: int) -> Sequence[Any]:
        """What stands beside a request, once the pool has sent it.

        Raises:
            What it has sent instead; ConnectionError: it has ended.
        """
        with self._changed:
            self._awaited[number] = None
        try:
            self._need(number)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._awaited[number] is not None)
        finally:
            with self._changed:
                came = self._awaited.pop(number)
        if isinstance(came, Exception):
            raise came
        if came is None:
            raise ConnectionError("the pool ended before it had sent them")
        return came

    def bring(self, number: int, objects: Sequence[Any] | Exception) -> None:
        """What was asked for; what nobody waits for any more is nothing to it."""
        with self._changed:
            if number in self._awaited:
                self._awaited[number] = objects
                self._changed.notify_all()

    def close(self) -> None:
        """The pool has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
