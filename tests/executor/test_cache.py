"""The object cache: never beyond its budget, never without a pinned object, unchanged by what does not fit."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kaas.executor.cache import ObjectCache, Reservation, Shortage, granules
from kaas.executor.eviction import LeastRecentlyUsed

KIB = 1024


def load(cache: ObjectCache[str], objects: dict[bytes, int], arena_bytes: int = 0) -> Reservation:
    """A request that succeeded: its objects are cached."""
    reservation = cache.reserve(objects, arena_bytes)
    assert isinstance(reservation, Reservation)
    cache.commit(reservation, {key: key.decode() for key in reservation.loads})
    cache.release(reservation)
    return reservation


def test_what_was_loaded_is_a_hit() -> None:
    cache: ObjectCache[str] = ObjectCache(10 * KIB)
    assert load(cache, {b"a": KIB, b"b": 100}).loads == {b"a": KIB, b"b": 512}
    again = load(cache, {b"a": KIB, b"c": KIB})
    assert (again.hits, again.loads, again.victims) == ((b"a",), {b"c": KIB}, ())
    assert cache.get(b"a") == "a"
    assert cache.used_bytes == 2 * KIB + 512


def test_least_recently_used_leave_first() -> None:
    cache: ObjectCache[str] = ObjectCache(3 * KIB)
    for key in (b"a", b"b", b"c", b"a"):
        load(cache, {key: KIB})
    assert load(cache, {b"d": 2 * KIB}).victims == (b"b", b"c")
    assert cache.sizes == {b"a": KIB, b"d": 2 * KIB}


def test_pinned_objects_stay() -> None:
    cache: ObjectCache[str] = ObjectCache(3 * KIB)
    running = cache.reserve({b"a": KIB}, 0)
    assert isinstance(running, Reservation)
    cache.commit(running, {b"a": "a"})
    load(cache, {b"b": KIB})
    assert cache.reserve({b"c": 2 * KIB, b"d": KIB}, 0) == Shortage(KIB)
    assert load(cache, {b"c": 2 * KIB}).victims == (b"b",)
    cache.release(running)
    assert load(cache, {b"e": 2 * KIB}).victims == (b"a", b"c")


def test_an_arena_takes_room_from_objects_and_gives_it_back() -> None:
    cache: ObjectCache[str] = ObjectCache(4 * KIB)
    load(cache, {b"a": KIB, b"b": KIB})
    grown = load(cache, {b"b": KIB}, arena_bytes=3 * KIB)
    assert (grown.victims, grown.arena_bytes_before, grown.arena_bytes) == ((b"a",), 0, 3 * KIB)
    kept = load(cache, {b"c": KIB}, arena_bytes=KIB)
    assert (kept.victims, kept.arena_bytes) == ((b"b",), 3 * KIB)
    shrunk = load(cache, {b"d": 3 * KIB}, arena_bytes=KIB)
    assert (shrunk.victims, shrunk.arena_bytes) == ((b"c",), KIB)


def test_abort_puts_everything_back() -> None:
    cache: ObjectCache[str] = ObjectCache(3 * KIB)
    for key in (b"a", b"b"):
        load(cache, {key: KIB}, arena_bytes=KIB)
    before = (cache.sizes, cache.used_bytes, cache.arena_bytes)
    reservation = cache.reserve({b"b": KIB, b"c": KIB}, KIB)
    assert isinstance(reservation, Reservation)
    assert reservation.victims == (b"a",)
    cache.abort(reservation)
    assert (cache.sizes, cache.used_bytes, cache.arena_bytes) == before
    assert not cache.pinned
    assert load(cache, {b"c": KIB}).victims == (b"a",), "the order of use is as before, too"


def test_abort_knows_what_was_freed() -> None:
    cache: ObjectCache[str] = ObjectCache(2 * KIB)
    load(cache, {b"a": KIB})
    load(cache, {b"b": KIB})
    reservation = cache.reserve({b"c": 2 * KIB}, 0)
    assert isinstance(reservation, Reservation)
    cache.abort(reservation, freed=[b"a"])
    assert cache.sizes == {b"b": KIB}
    assert cache.used_bytes == KIB


def test_one_open_reservation() -> None:
    cache: ObjectCache[str] = ObjectCache(KIB)
    reservation = cache.reserve({}, 0)
    assert isinstance(reservation, Reservation)
    with pytest.raises(ValueError, match="still open"):
        cache.reserve({}, 0)
    cache.abort(reservation)
    with pytest.raises(ValueError, match="not open"):
        cache.commit(reservation, {})


def test_victims_come_all_or_none() -> None:
    eviction = LeastRecentlyUsed()
    for key in (b"a", b"b", b"c"):
        eviction.used(key)
    sizes = dict.fromkeys((b"a", b"b", b"c"), 10)
    assert eviction.victims(0, sizes, ()) == ()
    assert eviction.victims(15, sizes, {b"a"}) == (b"b", b"c")
    assert eviction.victims(21, sizes, {b"a"}) is None


class CacheMachine(RuleBasedStateMachine):
    """Random requests that overlap: reserved, committed or aborted, and released in any order."""

    running: Bundle[Reservation | None] = Bundle("running")
    capacity_bytes = 16 * KIB

    def __init__(self) -> None:
        super().__init__()
        self.cache: ObjectCache[int] = ObjectCache(self.capacity_bytes)
        self.held: list[Reservation] = []
        self.sizes: dict[bytes, int] = {}

    @rule(
        target=running,
        keys=st.sets(st.integers(0, 9), max_size=4),
        arena_bytes=st.sampled_from([0, 1, 600, 4 * KIB, 15 * KIB]),
    )
    def run(self, keys: set[int], arena_bytes: int) -> Reservation | None:
        reservation = self._reserve(keys, arena_bytes)
        if reservation is None:
            return None
        self.cache.commit(reservation, {key: key[0] for key in reservation.loads})
        self.held.append(reservation)
        assert all(self.cache[key] == key[0] for key in (*reservation.hits, *reservation.loads))
        assert not set(reservation.victims) & self.cache.sizes.keys()
        return reservation

    @rule(keys=st.sets(st.integers(0, 9), max_size=4), arena_bytes=st.sampled_from([0, 600, 15 * KIB]), freed=st.data())
    def fail(self, keys: set[int], arena_bytes: int, freed: st.DataObject) -> None:
        before = (self.cache.sizes, self.cache.arena_bytes, self.cache.pinned)
        reservation = self._reserve(keys, arena_bytes)
        if reservation is None:
            return
        gone = freed.draw(st.sets(st.sampled_from(reservation.victims))) if reservation.victims else set()
        self.cache.abort(reservation, freed=gone)
        sizes = {key: nbytes for key, nbytes in before[0].items() if key not in gone}
        assert (self.cache.sizes, self.cache.arena_bytes, self.cache.pinned) == (sizes, *before[1:])

    @rule(reservation=consumes(running))
    def end(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            self.cache.release(reservation)
            self.held.remove(reservation)

    @invariant()
    def within_budget(self) -> None:
        assert self.cache.used_bytes == sum(self.cache.sizes.values()) + self.cache.arena_bytes
        assert self.cache.used_bytes <= self.capacity_bytes

    @invariant()
    def pins_are_there(self) -> None:
        pinned = {key for reservation in self.held for key in (*reservation.hits, *reservation.loads)}
        assert self.cache.pinned == pinned
        assert pinned <= self.cache.sizes.keys()

    def _reserve(self, keys: set[int], arena_bytes: int) -> Reservation | None:
        objects = {bytes([key]): 700 * (key + 1) for key in keys}
        before = (self.cache.sizes, self.cache.used_bytes, self.cache.pinned)
        pinned = self.cache.pinned
        reservation = self.cache.reserve(objects, arena_bytes)
        if isinstance(reservation, Reservation):
            assert not set(reservation.victims) & (pinned | objects.keys())
            assert reservation.arena_bytes >= arena_bytes
            return reservation
        assert (self.cache.sizes, self.cache.used_bytes, self.cache.pinned) == before
        kept = sum(nbytes for key, nbytes in before[0].items() if key in pinned | objects.keys())
        new = sum(granules(nbytes) for key, nbytes in objects.items() if key not in before[0])
        arena = granules(arena_bytes) if arena_bytes else 0
        assert reservation.missing_bytes == kept + new + arena - self.capacity_bytes > 0
        return None


TestCacheMachine = CacheMachine.TestCase
