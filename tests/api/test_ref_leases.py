"""References that a pool holds for a session, over the pool's epochs: each epoch counts, so each gets them once."""

from __future__ import annotations

from typing import Any

from kaas.api.pending_call import RefLeases


class Ref:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def binary(self) -> bytes:
        return self._key


class FakePool:
    """The holds and drops that a pool gets in its epochs; there may be no pool at a time."""

    def __init__(self) -> None:
        self.epoch: str | None = "first"
        self.held: list[tuple[str, list[bytes]]] = []
        self.dropped: list[tuple[str, list[bytes]]] = []
        self.leases = RefLeases(self.hold, lambda epoch, keys: self.dropped.append((epoch, keys)))

    def hold(self, refs: list[Any]) -> str | None:
        if self.epoch is not None:
            self.held.append((self.epoch, [ref.binary() for ref in refs]))
        return self.epoch


def test_an_epoch_that_holds_a_reference_gets_it_once() -> None:
    pool = FakePool()
    old = pool.leases.use([Ref(b"old")])
    pool.epoch = "second"
    new = pool.leases.use([Ref(b"new"), Ref(b"new")])
    pool.leases.again("second")
    pool.leases.again("second")
    assert pool.held == [("first", [b"old"]), ("second", [b"new"]), ("second", [b"old"])]
    pool.leases.release([*old, *new])
    assert pool.dropped == [("second", [b"old", b"new"])]


def test_only_the_epoch_that_holds_a_reference_releases_it() -> None:
    pool = FakePool()
    old = pool.leases.use([Ref(b"old")])
    pool.epoch = None
    between = pool.leases.use([Ref(b"between")])
    pool.leases.release(between)
    pool.epoch = "second"
    pool.leases.release(old)
    pool.leases.again("second")
    assert pool.held == [("first", [b"old"])]
    assert pool.dropped == [("first", [b"old"])]
