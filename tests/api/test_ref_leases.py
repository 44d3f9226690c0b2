"""What a session has the pool hold, over the pool's lives: each of them counts, so each is told once."""

from __future__ import annotations

from typing import Any

from kaas.api.ref_leases import RefLeases


class Ref:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def binary(self) -> bytes:
        return self._key


class Told:
    """What a pool hears in its lives, of which there may be none just now."""

    def __init__(self) -> None:
        self.life: str | None = "first"
        self.held: list[tuple[str, list[bytes]]] = []
        self.dropped: list[tuple[str, list[bytes]]] = []
        self.holds = RefLeases(self.hold, lambda life, keys: self.dropped.append((life, keys)))

    def hold(self, refs: list[Any]) -> str | None:
        if self.life is not None:
            self.held.append((self.life, [ref.binary() for ref in refs]))
        return self.life


def test_a_life_that_was_told_already_is_not_told_again() -> None:
    told = Told()
    old = told.holds.use([Ref(b"old")])
    told.life = "second"
    new = told.holds.use([Ref(b"new"), Ref(b"new")])
    told.holds.again("second")
    told.holds.again("second")
    assert told.held == [("first", [b"old"]), ("second", [b"new"]), ("second", [b"old"])]
    told.holds.release([*old, *new])
    assert told.dropped == [("second", [b"old", b"new"])]


def test_only_the_life_that_was_told_has_to_let_go() -> None:
    told = Told()
    old = told.holds.use([Ref(b"old")])
    told.life = None
    between = told.holds.use([Ref(b"between")])
    told.holds.release(between)
    told.life = "second"
    told.holds.release(old)
    told.holds.again("second")
    assert told.held == [("first", [b"old"])]
    assert told.dropped == [("first", [b"old"])]
