"""Bytes that clients store at a server, and the sum of bytes times seconds, by client and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kaas.server.usage.usage import KeptByClient

StoredKind = Literal["objects", "libraries"]


@dataclass(slots=True)
class _Stored:
    """The stored bytes of one client and one kind: bytes since a time, and bytes times seconds up to that time."""

    nbytes: int
    byte_s: float
    since_s: float

    def count(self, now_s: float) -> None:
        """Add the time up to now to `byte_s`."""
        self.byte_s += self.nbytes * (now_s - self.since_s)
        self.since_s = now_s


class StoredBytes:
    """Counts of what clients store, by client and kind. Times are seconds on one clock that never goes back."""

    def __init__(self) -> None:
        """Start with no client."""
        self._stored: dict[tuple[str, str], _Stored] = {}

    def restore(self, client: str, kind: str, byte_s: float, now_s: float) -> None:
        """Take over the sum of an earlier epoch. The bytes are 0 until `change` is called."""
        self._stored[client, kind] = _Stored(0, byte_s, now_s)

    def change(self, client: str, kind: StoredKind, nbytes: int, now_s: float) -> None:
        """Set how many bytes a client stores from now on."""
        stored = self._stored.setdefault((client, kind), _Stored(0, 0.0, now_s))
        stored.count(now_s)
        stored.nbytes = nbytes

    @property
    def any(self) -> bool:
        """True if a client stores any byte."""
        return any(stored.nbytes for stored in self._stored.values())

    def kept(self, now_s: float) -> tuple[KeptByClient, ...]:
        """Return the counts up to now, in order of client and kind."""
        for stored in self._stored.values():
            stored.count(now_s)
        return tuple(KeptByClient(*name, stored.nbytes, stored.byte_s) for name, stored in sorted(self._stored.items()))
