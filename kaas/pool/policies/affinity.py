"""Which device holds most of what a request reads, learned from `Residency`."""

from __future__ import annotations

from kaas.pool.events import Residency
from kaas.pool.policies.books import Request

REMEMBERED = 4096
"""Answers that are kept for the next time."""


class Resident:
    """The objects on each device, by key. An answer is kept until one of the request's objects moves."""

    def __init__(self) -> None:
        self._devices: dict[bytes, set[int]] = {}
        self._held: dict[int, set[bytes]] = {}
        self._answers: dict[int, tuple[int, ...]] = {}
        self._asked: dict[bytes, set[int]] = {}

    def most(self, request: Request) -> tuple[int, ...]:
        """The device with most bytes of a request's inputs, the lower of equals; none if no device has any."""
        known = self._answers.get(request.id)
        if known is not None:
            return known
        if len(self._answers) >= REMEMBERED:
            self._answers.clear()
            self._asked.clear()
        nbytes: dict[int, int] = {}
        for use in request.inputs:
            if use.key is not None and use.nbytes:
                self._asked.setdefault(use.key, set()).add(request.id)
                for device in self._devices.get(use.key, ()):
                    nbytes[device] = nbytes.get(device, 0) + use.nbytes
        answer = (min(nbytes, key=lambda device: (-nbytes[device], device)),) if nbytes else ()
        self._answers[request.id] = answer
        return answer

    def moved(self, event: Residency, device: int) -> None:
        held = self._held.setdefault(event.worker, set())
        for key in event.loaded:
            held.add(key)
            self._devices.setdefault(key, set()).add(device)
            self._forget(key)
        for key in event.evicted:
            held.discard(key)
            self._leave(key, device)

    def emptied(self, worker: int, device: int) -> None:
        for key in self._held.pop(worker, ()):
            self._leave(key, device)

    def _leave(self, key: bytes, device: int) -> None:
        devices = self._devices.get(key, set())
        devices.discard(device)
        if not devices:
            self._devices.pop(key, None)
        self._forget(key)

    def _forget(self, key: bytes) -> None:
        """The answers that a key was asked for."""
        for request in self._asked.pop(key, ()):
            self._answers.pop(request, None)
