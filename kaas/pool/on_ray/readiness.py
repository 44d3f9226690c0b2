"""Finds out which referenced objects exist, without a fetch and without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

Exist = Callable[[Sequence[Any], int, float], tuple[list[Any], list[Any]]]
"""(references, how many are enough, seconds to wait) -> (those that exist, the others)."""

POLL_S = 0.01
"""Duration of one wait. References that are added meanwhile join the next wait."""


class Readiness:
    """One thread that waits for all references that are not complete yet. A failed task's reference is complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop, exist: Exist) -> None:
        self._loop = loop
        self._exist = exist
        self._lock = threading.Condition()
        self._pending: dict[Any, list[asyncio.Future[None]]] = {}
        self._thread: threading.Thread | None = None

    def of(self, refs: Sequence[Any]) -> asyncio.Future[list[None]] | None:
        """Return None if all objects exist, else a future that ends when they do. Call it in the event loop."""
        unique = list(dict.fromkeys(refs))
        _, missing = self._exist(unique, len(unique), 0)
        if not missing:
            return None
        parts = [self._loop.create_future() for _ in missing]
        with self._lock:
            for ref, part in zip(missing, parts, strict=True):
                self._pending.setdefault(ref, []).append(part)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="kaas-readiness", daemon=True)
                self._thread.start()
            self._lock.notify()
        return asyncio.gather(*parts)

    def _watch(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._pending)
                refs = self._wanted()
            if not refs:
                continue
            done = self._some(refs)
            with self._lock:
                parts = [part for ref in done for part in self._pending.pop(ref)]
            if parts:
                self._loop.call_soon_threadsafe(_complete, parts)

    def _some(self, refs: list[Any]) -> list[Any]:
        """Return those that exist, after a short wait for the first."""
        try:
            done, rest = self._exist(refs, 1, POLL_S)
            return done + self._exist(rest, len(rest), 0)[0] if done and rest else done
        except Exception:  # noqa: BLE001 - the executor reports the error when it reads the objects
            return refs

    def _wanted(self) -> list[Any]:
        """Return the references that a future still waits for; forget the others."""
        self._pending = {ref: parts for ref, parts in self._pending.items() if not all(part.done() for part in parts)}
        return list(self._pending)


def _complete(parts: Sequence[asyncio.Future[None]]) -> None:
    for part in parts:
        if not part.done():
            part.set_result(None)
