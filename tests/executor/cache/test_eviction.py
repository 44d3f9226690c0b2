"""Victims: enough or none, never a kept object, in the policy's order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kaas.executor.cache.eviction import IN_USE_REQUESTS, SegmentedLru, named_first

SIZES = {bytes([key]): 10 for key in range(256)}
KEYS = st.integers(0, 6).map(lambda key: bytes([key]))


def after(*requests: bytes, constants: bytes = b"") -> SegmentedLru:
    """Return a policy that has noted these requests; each byte is the key of an object."""
    eviction = SegmentedLru()
    for request in requests:
        eviction.used(keys(request), keys(constants))
    return eviction


def keys(request: bytes) -> tuple[bytes, ...]:
    return tuple(bytes([key]) for key in request)


def order(eviction: SegmentedLru, count: int) -> bytes:
    return b"".join(eviction.victims(10 * count, SIZES, ()) or ())


def test_victims_are_enough_or_none() -> None:
    eviction = after(b"a", b"b", b"c")
    assert eviction.victims(0, SIZES, ()) == ()
    assert eviction.victims(15, SIZES, {b"a"}) == (b"b", b"c")
    assert eviction.victims(21, SIZES, {b"a"}) is None


def test_objects_used_once_are_evicted_first() -> None:
    eviction = after(b"a", b"b", b"a", b"c", b"d")
    assert order(eviction, 4) == b"bcda"


def test_the_longest_unused_object_of_each_set_is_evicted_first() -> None:
    assert order(after(b"ab", b"c", b"ab", b"c", b"a"), 3) == b"bca"


def test_constants_are_evicted_last() -> None:
    eviction = after(b"ax", b"ay", b"bz", b"bz", constants=b"xy")
    assert order(eviction, 5) == b"abzxy"


def test_constants_of_functions_out_of_use_are_like_the_rest() -> None:
    eviction = after(b"ax", b"a", constants=b"x")
    assert order(eviction, 2) == b"ax"
    for _ in range(IN_USE_REQUESTS):
        eviction.used((b"y",), (b"y",))
    assert order(eviction, 3) == b"xay"
    eviction.used((b"x",), (b"x",))
    assert order(eviction, 3) == b"ayx"


def test_models_that_replace_others_drive_out_those_and_not_each_other() -> None:
    """Each of eight new models is loaded once, where eight fit and eight old ones were used often."""
    eviction = after(*keys(b"abcdefgh") * 5, constants=b"abcdefgh")
    there, loads = set(keys(b"abcdefgh")), 0
    for key in keys(b"stuvwxyz") * 5:
        if key not in there:
            loads += 1
            (victim,) = eviction.victims(10, SIZES, ()) or ()
            eviction.removed(victim)
            there = there - {victim} | {key}
        eviction.used((key,), (key,))
    assert loads == 8


def test_an_object_that_is_loaded_again_counts_as_new() -> None:
    eviction = after(b"a", b"b", b"a", b"c")
    eviction.removed(b"a")
    eviction.used((b"a",), ())
    assert order(eviction, 3) == b"bca"


def test_named_objects_leave_before_those_of_the_rule() -> None:
    eviction = after(b"abcd")
    named = keys(b"dxbdc")
    assert named_first(eviction, 0, SIZES, (), named) == ()
    assert named_first(eviction, 15, SIZES, keys(b"b"), keys(b"dbc")) == (b"d", b"c")
    assert named_first(eviction, 25, dict.fromkeys(keys(b"abcd"), 10), (), keys(b"dxd")) == (b"d", b"a", b"b")
    assert named_first(eviction, 35, dict.fromkeys(keys(b"abcd"), 10), keys(b"a"), named) is None


@given(
    requests=st.lists(st.sets(KEYS, min_size=1, max_size=3), max_size=20),
    constants=st.sets(KEYS, max_size=2),
    kept=st.sets(KEYS, max_size=3),
    needed_bytes=st.integers(0, 80),
)
def test_asking_changes_nothing_and_takes_no_more_than_needed(
    requests: list[set[bytes]], constants: set[bytes], kept: set[bytes], needed_bytes: int
) -> None:
    eviction = SegmentedLru()
    for request in requests:
        eviction.used(sorted(request), constants)
    there = set().union(*requests)
    victims = eviction.victims(needed_bytes, SIZES, kept)
    assert eviction.victims(needed_bytes, SIZES, kept) == victims
    if victims is None:
        assert 10 * len(there - kept) < needed_bytes
    else:
        assert set(victims) <= there - kept
        assert len(set(victims)) == len(victims) == -(-needed_bytes // 10)
