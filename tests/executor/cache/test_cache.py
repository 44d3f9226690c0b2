"""The object cache stays within its budget, keeps pinned objects, and ignores requests that do not fit."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kaas.executor.cache.cache import ObjectCache
from kaas.executor.cache.reservation import Reservation, Shortage
from tests.executor.cache_model import CacheModel

KIB = 1024


def load(
    cache: ObjectCache[str, str], objects: dict[bytes, int], arena_bytes: int = 0, constants: bytes = b""
) -> Reservation:
    """Run a request that succeeds, so that its objects are cached."""
    reservation = cache.reserve(objects, 0, arena_bytes)
    assert isinstance(reservation, Reservation)
    values, host_values = ({key: key.decode() for key in keys} for keys in (reservation.loads, reservation.host_loads))
    cache.commit(reservation, values, host_values)
    cache.release(reservation, constants={bytes([key]) for key in constants})
    return reservation


def test_a_loaded_object_is_a_hit() -> None:
    cache: ObjectCache[str, str] = ObjectCache(10 * KIB)
    assert load(cache, {b"a": KIB, b"b": 100}).loads == {b"a": KIB, b"b": 512}
    again = load(cache, {b"a": KIB, b"c": KIB})
    assert (again.hits, again.loads, again.victims) == ((b"a",), {b"c": KIB}, ())
    assert cache.device.values[b"a"] == "a"
    assert cache.used_bytes == 2 * KIB + 512


def test_objects_used_once_are_evicted_first_and_constants_last() -> None:
    cache: ObjectCache[str, str] = ObjectCache(3 * KIB)
    for key in (b"a", b"b", b"c", b"a"):
        load(cache, {key: KIB}, constants=b"c")
    assert load(cache, {b"d": 2 * KIB}).victims == (b"b", b"a")
    assert cache.sizes == {b"c": KIB, b"d": 2 * KIB}


def test_pinned_objects_stay() -> None:
    cache: ObjectCache[str, str] = ObjectCache(3 * KIB)
    running = cache.reserve({b"a": KIB}, 1, 0)
    assert isinstance(running, Reservation)
    cache.commit(running, {b"a": "a"})
    load(cache, {b"b": KIB})
    assert cache.reserve({b"c": 2 * KIB, b"d": KIB}, 0, 0) == Shortage(KIB)
    assert load(cache, {b"c": 2 * KIB}).victims == (b"b",)
    cache.release(running)
    assert load(cache, {b"e": 2 * KIB}).victims == (b"c",)
    assert load(cache, {b"f": 3 * KIB}).victims == (b"a", b"e")


def test_an_arena_takes_room_from_objects_and_returns_it() -> None:
    cache: ObjectCache[str, str] = ObjectCache(4 * KIB)
    load(cache, {b"a": KIB, b"b": KIB})
    grown = load(cache, {b"b": KIB}, arena_bytes=3 * KIB)
    assert (grown.victims, grown.arena_bytes_before, grown.arena_bytes) == ((b"a",), 0, 3 * KIB)
    kept = load(cache, {b"b": KIB}, arena_bytes=KIB)
    assert (kept.victims, kept.arena_bytes) == ((), 3 * KIB), "there is room for the arena"
    shrunk = load(cache, {b"c": KIB}, arena_bytes=KIB)
    assert (shrunk.victims, shrunk.arena_bytes) == ((), KIB), "the arena shrinks before any object leaves"
    assert load(cache, {b"d": 3 * KIB}, arena_bytes=KIB).victims == (b"c", b"b")  # used once, and then the rest


def test_idle_arenas_leave_before_objects_and_no_more_of_them_than_needed() -> None:
    cache: ObjectCache[str, str] = ObjectCache(10 * KIB)
    for slot in (1, 2):
        cache.release(begin(cache, {}, slot, 2 * KIB))
    load(cache, {b"a": 3 * KIB}, arena_bytes=KIB)
    taken = begin(cache, {b"b": 4 * KIB}, 0, KIB)
    assert (taken.victims, taken.arenas_freed) == ((), {1: 2 * KIB})
    cache.release(taken)
    assert cache.arenas == {0: KIB, 2: 2 * KIB}


def test_abort_puts_everything_back() -> None:
    cache: ObjectCache[str, str] = ObjectCache(3 * KIB)
    for key in (b"a", b"b"):
        load(cache, {key: KIB}, arena_bytes=KIB)
    before = (cache.sizes, cache.used_bytes, cache.arena_bytes)
    reservation = cache.reserve({b"b": KIB, b"c": KIB}, 0, KIB)
    assert isinstance(reservation, Reservation)
    assert reservation.victims == (b"a",)
    cache.abort(reservation)
    assert (cache.sizes, cache.used_bytes, cache.arena_bytes) == before
    assert not cache.pinned
    assert load(cache, {b"c": KIB}, KIB).victims == (b"a",), "the order of use is as before too"


def test_abort_keeps_freed_objects_out() -> None:
    cache: ObjectCache[str, str] = ObjectCache(2 * KIB)
    load(cache, {b"a": KIB})
    load(cache, {b"b": KIB})
    reservation = cache.reserve({b"c": 2 * KIB}, 0, 0)
    assert isinstance(reservation, Reservation)
    cache.abort(reservation, freed=[b"a"])
    assert cache.sizes == {b"b": KIB}
    assert cache.used_bytes == KIB


def test_one_open_reservation() -> None:
    cache: ObjectCache[str, str] = ObjectCache(KIB)
    reservation = cache.reserve({}, 0, 0)
    assert isinstance(reservation, Reservation)
    with pytest.raises(ValueError, match="still open"):
        cache.reserve({}, 0, 0)
    cache.abort(reservation)
    with pytest.raises(ValueError, match="not open"):
        cache.commit(reservation, {})


def test_a_request_that_lacks_nothing_is_a_hit() -> None:
    cache: ObjectCache[str, str] = ObjectCache(4 * KIB)
    load(cache, {b"a": KIB}, arena_bytes=KIB)
    reservation = cache.hit({b"a": KIB}, 0, KIB)
    assert reservation == Reservation((b"a",), {}, (), 0, KIB, KIB)
    assert cache.pinned == {b"a"}
    assert cache.hit({b"a": KIB}, 1, KIB) is None, "the arena belongs to another slot"
    assert cache.hit({b"a": KIB, b"b": KIB}, None, 0) is None
    with pytest.raises(ValueError, match="runs in slot 0"):
        cache.hit({}, 0, 0)
    cache.release(reservation)
    assert not cache.pinned


# --- requests that overlap


def begin(
    cache: ObjectCache[str, str], objects: dict[bytes, int], slot: int | None, arena_bytes: int = 0
) -> Reservation:
    """Begin a request, whose loads are on their way."""
    reservation = cache.reserve(objects, slot, arena_bytes)
    assert isinstance(reservation, Reservation)
    values, host_values = ({key: key.decode() for key in keys} for keys in (reservation.loads, reservation.host_loads))
    cache.commit(reservation, values, host_values)
    return reservation


def test_an_object_on_its_way_is_a_hit_and_stays_while_a_request_uses_it() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB, 8 * KIB)
    first, second = begin(cache, {b"a": KIB, b"b": KIB}, 0), begin(cache, {b"a": KIB}, 1)
    assert (second.hits, second.loads) == ((b"a",), {})
    assert cache.fail(first) == ({b"b": "b"}, {b"b": "b"})
    third = begin(cache, {b"a": KIB}, 0)
    assert cache.fail(second) == ({}, {})
    cache.release(third)
    assert cache.sizes == cache.host.sizes == {b"a": KIB}
    assert cache.fail(begin(cache, {b"a": KIB}, 0)) == ({}, {}), "the object stays since the third request succeeded"
    assert load(cache, {b"c": 8 * KIB}).host_victims == (b"a",)


def test_an_object_that_no_request_used_leaves_no_trace() -> None:
    cache: ObjectCache[str, str] = ObjectCache(KIB, 4 * KIB)
    load(cache, {b"a": KIB})
    load(cache, {b"b": KIB})
    cache.fail(begin(cache, {b"c": KIB}, 0))
    assert cache.fail(begin(cache, {b"a": KIB}, 0)) == ({b"a": "a"}, {}), "host memory had it before"
    assert cache.device.returning([b"a", b"b", b"c"]) == 2


def test_a_held_object_stays_if_its_loader_fails() -> None:
    cache: ObjectCache[str, str] = ObjectCache(2 * KIB)
    first = begin(cache, {b"a": KIB}, 0)
    cache.hold([b"a"])
    assert cache.fail(first) == ({}, {})
    cache.let_go([b"a"])
    assert load(cache, {b"b": 2 * KIB}).victims == (b"a",)


def test_arenas_of_slots_in_which_nothing_runs_give_way_the_largest_first() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB)
    for slot, arena_bytes in enumerate((KIB, 2 * KIB, 3 * KIB)):
        reservation = begin(cache, {}, slot, arena_bytes)
        if slot != 1:
            cache.release(reservation)
    assert cache.arenas == {0: KIB, 1: 2 * KIB, 2: 3 * KIB}
    taken = begin(cache, {b"a": 5 * KIB}, None)
    assert (taken.arenas_freed, cache.arenas) == ({2: 3 * KIB}, {0: KIB, 1: 2 * KIB})
    assert cache.reserve({b"b": 2 * KIB}, None, 0) == Shortage(KIB)
    assert cache.reserve({b"b": 9 * KIB}, None, 0) == Shortage(8 * KIB, lasting_bytes=KIB)
    assert cache.arenas == {0: KIB, 1: 2 * KIB}


def test_a_slot_runs_one_request() -> None:
    cache: ObjectCache[str, str] = ObjectCache(KIB)
    begin(cache, {}, 1)
    with pytest.raises(ValueError, match="runs in slot 1"):
        cache.reserve({}, 1, 0)


# --- the host tier


def test_an_evicted_object_stays_in_host_memory() -> None:
    cache: ObjectCache[str, str] = ObjectCache(2 * KIB, 4 * KIB)
    assert load(cache, {b"a": KIB, b"b": KIB}).host_loads == {b"a": KIB, b"b": KIB}
    assert load(cache, {b"c": KIB}).victims == (b"a",)
    again = load(cache, {b"a": KIB})
    assert (again.loads, again.host_hits, again.host_loads, again.victims) == ({b"a": KIB}, (b"a",), {}, (b"b",))
    assert cache.host.sizes == dict.fromkeys((b"a", b"b", b"c"), KIB)


def test_replaced_objects_leave_in_any_case() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB, 8 * KIB)
    load(cache, {b"a": KIB, b"b": KIB, b"c": KIB})
    cache.hold([b"c"])
    reservation = cache.reserve({b"abc": 3 * KIB}, 0, 0, [b"b", b"a", b"c", b"d"])
    assert isinstance(reservation, Reservation)
    assert reservation.victims == reservation.host_victims == (b"b", b"a")


def test_host_memory_evicts_by_itself() -> None:
    cache: ObjectCache[str, str] = ObjectCache(4 * KIB, 2 * KIB)
    for key in (b"a", b"b", b"c"):
        loaded = load(cache, {key: KIB})
    assert (loaded.victims, loaded.host_victims) == ((), (b"a",))
    assert (set(cache.device.sizes), set(cache.host.sizes)) == ({b"a", b"b", b"c"}, {b"b", b"c"})


def test_an_object_beyond_host_memory_is_loaded_on_the_device_only() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB, 2 * KIB)
    load(cache, {b"a": KIB})
    loaded = load(cache, {b"big": 3 * KIB, b"b": KIB, b"c": KIB, b"d": KIB})
    assert loaded.loads.keys() == {b"big", b"b", b"c", b"d"}
    assert (loaded.host_loads, loaded.host_victims) == ({b"b": KIB, b"c": KIB}, (b"a",))


def test_pinned_objects_stay_in_host_memory() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB, KIB)
    running = cache.reserve({b"a": KIB}, 1, 0)
    assert isinstance(running, Reservation)
    cache.commit(running, {b"a": "a"}, {b"a": "a"})
    assert load(cache, {b"b": KIB}).host_loads == {}
    cache.release(running)
    assert load(cache, {b"c": KIB}).host_victims == (b"a",)


def test_host_memory_that_could_not_be_had() -> None:
    cache: ObjectCache[str, str] = ObjectCache(8 * KIB, 2 * KIB)
    reservation = cache.reserve({b"a": KIB, b"b": KIB}, 0, 0)
    assert isinstance(reservation, Reservation)
    cache.commit(reservation, {b"a": "a", b"b": "b"}, {b"b": "b"})
    assert (cache.host.sizes, cache.host.reserved_bytes) == ({b"b": KIB}, KIB)


def test_a_miss_is_compulsory_or_for_capacity() -> None:
    cache: ObjectCache[str, str] = ObjectCache(KIB)
    load(cache, {b"a": KIB})
    load(cache, {b"b": KIB})
    assert cache.device.returning([b"a", b"b", b"c"]) == 1
    load(cache, {b"a": KIB})
    assert cache.device.returning([b"a", b"b"]) == 1


# --- random requests

SIZES = {bytes([key]): 700 * (key + 1) for key in range(10)}
CAPACITY_BYTES, HOST_BYTES = 16 * KIB, 12 * KIB


Running = tuple[Reservation, set[bytes], set[bytes]]
"""A committed reservation, its constants, and its objects that will be unsaved."""


class CacheMachine(RuleBasedStateMachine):
    """Random requests overlap, in three slots and without a slot, and end in any order, as the slow model does."""

    running: Bundle[Running | None] = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.cache: ObjectCache[int, int] = ObjectCache(CAPACITY_BYTES, HOST_BYTES)
        self.model = CacheModel(CAPACITY_BYTES, HOST_BYTES)
        self.out: list[Reservation] = []

    @rule(
        target=running,
        keys=st.sets(st.sampled_from(sorted(SIZES)), max_size=4),
        slot=st.sampled_from([0, 0, 1, 2, None]),
        arena_bytes=st.sampled_from([0, 1, 600, 4 * KIB, 15 * KIB]),
        constants=st.sets(st.sampled_from(sorted(SIZES)), max_size=2),
        unhosted=st.booleans(),
        replaced=st.sets(st.sampled_from(sorted(SIZES)), max_size=2),
        made=st.sets(st.sampled_from(sorted(SIZES)), max_size=2),
        held=st.sets(st.sampled_from(sorted(SIZES)), max_size=2),
        saved=st.booleans(),
    )
    def run(
        self,
        keys: set[bytes],
        slot: int | None,
        arena_bytes: int,
        constants: set[bytes],
        unhosted: bool,
        replaced: set[bytes],
        made: set[bytes],
        held: set[bytes],
        saved: bool,
    ) -> Running | None:
        made = (made & keys) - self.cache.sizes.keys() - self.cache.host.sizes.keys()
        held = (held & keys) - made - self.cache.sizes.keys() - self.cache.host.sizes.keys()
        reservation = self._reserve(keys, slot, arena_bytes, sorted(replaced), made, held)
        if reservation is None:
            return None
        hosted = list(reservation.host_loads)[unhosted:]
        values, host_values = ({key: key[0] for key in loads} for loads in (reservation.loads, hosted))
        self.cache.commit(reservation, values, host_values)
        self.model.commit(reservation, hosted)
        self.out.append(reservation)
        assert all(self.cache.device.values[key] == key[0] for key in keys)
        return reservation, constants & keys, set() if saved else made

    @rule(
        keys=st.sets(st.sampled_from(sorted(SIZES)), max_size=4),
        slot=st.sampled_from([0, 1, 2, None]),
        arena_bytes=st.sampled_from([0, 600, 15 * KIB]),
        data=st.data(),
    )
    def refuse(self, keys: set[bytes], slot: int | None, arena_bytes: int, data: st.DataObject) -> None:
        reservation = self._reserve(keys, slot, arena_bytes)
        if reservation is None:
            return
        freed, host_freed = (
            data.draw(st.lists(st.sampled_from(victims), unique=True)) if victims else []
            for victims in (reservation.victims, reservation.host_victims)
        )
        self.cache.abort(reservation, freed=freed, host_freed=host_freed)
        self.model.abort(reservation, freed, host_freed)

    @rule(ended=consumes(running))
    def succeed(self, ended: Running | None) -> None:
        if ended is not None:
            reservation, constants, unsaved = ended
            self.cache.release(reservation, constants=constants, unsaved=unsaved)
            self.model.release(reservation, constants, unsaved)
            self.out.remove(reservation)

    @rule(ended=consumes(running))
    def fail(self, ended: Running | None) -> None:
        if ended is not None:
            left, left_host = self.cache.fail(ended[0])
            assert (set(left), set(left_host)) == self.model.fail(ended[0])
            self.out.remove(ended[0])

    @rule(keys=st.sets(st.sampled_from(sorted(SIZES)), max_size=3))
    def flush(self, keys: set[bytes]) -> None:
        left, left_host = self.cache.flush(sorted(keys))
        leaving = keys - set(self.model.pins) - self.model.unsaved
        assert (set(left), set(left_host)) == (
            leaving & self.model.device.sizes().keys(),
            leaving & self.model.host.sizes().keys(),
        )
        self.model.device.remove(leaving)
        self.model.host.remove(leaving)

    @rule(key=st.sampled_from(sorted(SIZES)))
    def save(self, key: bytes) -> None:
        self.cache.saved(key)
        self.model.unsaved.discard(key)

    @rule(keys=st.sets(st.sampled_from(sorted(SIZES)), max_size=2))
    def hold(self, keys: set[bytes]) -> None:
        new = sorted(keys & (self.cache.sizes.keys() - self.model.held))
        self.cache.hold(new)
        self.model.hold(new)

    @rule(keys=st.sets(st.sampled_from(sorted(SIZES)), max_size=3))
    def let_go(self, keys: set[bytes]) -> None:
        self.cache.let_go(keys)
        for key in keys & self.model.held:
            self.model.held.remove(key)
            self.model.pins.remove(key)

    @invariant()
    def within_budget(self) -> None:
        for tier, capacity_bytes in ((self.cache.device, CAPACITY_BYTES), (self.cache.host, HOST_BYTES)):
            assert tier.reserved_bytes == sum(tier.sizes.values()) <= capacity_bytes
            assert tier.sizes.keys() == tier.values.keys()
        assert self.cache.used_bytes <= CAPACITY_BYTES

    @invariant()
    def pins_are_there(self) -> None:
        running = {key for reservation in self.out for key in (*reservation.hits, *reservation.loads)}
        pinned = running | self.model.held
        assert self.cache.pinned == pinned
        assert pinned <= self.cache.sizes.keys()

    @invariant()
    def as_the_model(self) -> None:
        assert self.cache.sizes == self.model.device.sizes()
        assert self.cache.host.sizes == self.model.host.sizes()
        assert self.cache.arenas == self.model.arenas
        assert self.cache.unsaved == self.model.unsaved <= self.cache.sizes.keys()

    def _reserve(
        self,
        keys: set[bytes],
        slot: int | None,
        arena_bytes: int,
        replaced: Collection[bytes] = (),
        made: Collection[bytes] = (),
        held: Collection[bytes] = (),
    ) -> Reservation | None:
        if slot in self.model.running:
            return None
        arena_bytes = 0 if slot is None else arena_bytes
        objects = {key: SIZES[key] for key in sorted(keys)}
        expected = self.model.reserve(objects, slot, arena_bytes, replaced, made, held)
        before = self._all()
        reservation = self.cache.reserve(objects, slot, arena_bytes, replaced, made, held=held)
        assert reservation == expected
        if isinstance(reservation, Reservation):
            gone = {*reservation.victims, *reservation.host_victims}
            assert not gone & (before[-1] | objects.keys())
            return reservation
        assert self._all() == before
        return None

    def _all(self) -> tuple[dict[bytes, int], dict[bytes, int], int, dict[int, int], frozenset[bytes]]:
        cache = self.cache
        return cache.sizes, dict(cache.host.sizes), cache.used_bytes, dict(cache.arenas), cache.pinned


TestCacheMachine = CacheMachine.TestCase
