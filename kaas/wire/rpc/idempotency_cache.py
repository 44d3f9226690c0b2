"""Replies to requests with an idempotency key: kept for a time, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class IdempotencyCache(Generic[T]):
    """The replies of one client by key. The oldest leave first; `expire` removes those whose time is over."""

    def __init__(
        self, limit_bytes: int, limit_s: float, forgotten: Callable[[str, T], object] = lambda _key, _ended: None
    ) -> None:
        """forgotten: called with each reply that is no longer kept."""
        self._limit_bytes, self._limit_s, self._forgotten = limit_bytes, limit_s, forgotten
        self._ended: OrderedDict[str, tuple[T, int, float]] = OrderedDict()
        self._nbytes = 0

    def get(self, key: str) -> T | None:
        found = self._ended.get(key)
        return None if found is None else found[0]

    def takes(self, nbytes: int) -> bool:
        return nbytes <= self._limit_bytes

    def add(self, key: str, ended: T, nbytes: int, now_s: float) -> None:
        """Keep a reply, unless it alone is larger than the limit."""
        self.forget(key)
        if not self.takes(nbytes):
            self._forgotten(key, ended)
        else:
            self._ended[key] = ended, nbytes, now_s + self._limit_s
            self._nbytes += nbytes
            while self._nbytes > self._limit_bytes:
                self.forget(next(iter(self._ended)))

    def expire(self, now_s: float) -> None:
        while self._ended and next(iter(self._ended.values()))[2] <= now_s:
            self.forget(next(iter(self._ended)))

    def forget(self, key: str) -> None:
        found = self._ended.pop(key, None)
        if found is not None:
            self._nbytes -= found[1]
            self._forgotten(key, found[0])

    def __len__(self) -> int:
        return len(self._ended)
