"""Answers to requests with a key that somebody may ask for again: kept for a time, in so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Ended(Protocol):
    """nbytes: that its answer takes. ended_s: when it came."""

    nbytes: int
    ended_s: float


T = TypeVar("T", bound=Ended)

ENTRY_BYTES = 512
"""What an answer takes beside its bytes."""


class Finished(Generic[T]):
    """Of one client, by key; the oldest go first."""

    def __init__(self, limit_bytes: int, limit_s: float) -> None:
        self._limit_bytes, self._limit_s = limit_bytes, limit_s
        self._ended: OrderedDict[str, T] = OrderedDict()
        self.nbytes = 0

    def get(self, key: str, now_s: float) -> T | None:
        self.expire(now_s)
        return self._ended.get(key)

    def add(self, key: str, ended: T) -> None:
        """Now; of a key that is not there. One that is larger than all may be is not kept."""
        if ended.nbytes + ENTRY_BYTES > self._limit_bytes:
            return
        self.nbytes += ended.nbytes + ENTRY_BYTES
        self._ended[key] = ended
        while self.nbytes > self._limit_bytes:
            self._forget_oldest()
        self.expire(ended.ended_s)

    def expire(self, now_s: float) -> None:
        while self._ended and next(iter(self._ended.values())).ended_s + self._limit_s <= now_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, ended = self._ended.popitem(last=False)
        self.nbytes -= ended.nbytes + ENTRY_BYTES

    def __len__(self) -> int:
        return len(self._ended)
