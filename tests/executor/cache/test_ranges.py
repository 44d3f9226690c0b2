"""Parts of large objects are disjoint and aligned, and each view is in one of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kaas.executor.cache.ranges import Part, Ranges
from kaas.executor.cache.tiers import GRANULE_BYTES as G

NBYTES = 20 * G + 100

spans = st.tuples(st.integers(0, NBYTES), st.integers(0, NBYTES)).map(lambda span: (min(span), max(span)))


def with_parts(*ends: tuple[int, int]) -> Ranges:
    ranges = Ranges()
    for start, end in ends:
        ranges.add(Part(b"x", start, end))
    return ranges


def test_overlapping_ranges_become_one() -> None:
    new, replaced = with_parts((0, 2 * G), (3 * G, 4 * G), (8 * G, 9 * G)).cover(b"x", [(G + 7, 3 * G + 7)], NBYTES)
    assert new == (Part(b"x", 0, 4 * G),)
    assert replaced == (Part(b"x", 0, 2 * G), Part(b"x", 3 * G, 4 * G))


def test_ranges_that_only_touch_stay_apart() -> None:
    new, replaced = with_parts((0, 2 * G)).cover(b"x", [(2 * G, 3 * G), (5 * G, 6 * G)], NBYTES)
    assert new == (Part(b"x", 2 * G, 3 * G), Part(b"x", 5 * G, 6 * G))
    assert replaced == ()


def test_covered_ranges_need_nothing() -> None:
    ranges = with_parts((0, 4 * G))
    assert ranges.cover(b"x", [(G, 2 * G), (0, 4 * G)], NBYTES) == ((), ())
    assert ranges.cover(b"y", [(0, 1)], NBYTES) == ((Part(b"y", 0, G),), ())


def test_parts_end_where_the_object_ends() -> None:
    new, _ = Ranges().cover(b"x", [(20 * G + 1, NBYTES)], NBYTES)
    assert new == (Part(b"x", 20 * G, NBYTES),)


@given(st.lists(st.lists(spans, min_size=1, max_size=4), max_size=8))
def test_parts_are_disjoint_and_hold_every_view(requests: list[list[tuple[int, int]]]) -> None:
    ranges = Ranges()
    read: set[int] = set()
    for wanted in requests:
        new, replaced = ranges.cover(b"x", wanted, NBYTES)
        for part in replaced:
            ranges.remove(part.entry)
        for part in new:
            ranges.add(part)
        assert all(ranges.covering(b"x", start, end) for start, end in wanted)
        parts = sorted(ranges.parts(b"x"), key=lambda part: part.start)
        assert all(before.end <= after.start for before, after in pairwise(parts))
        assert all(part.start % G == 0 and part.end <= NBYTES for part in parts)
        # A slow model: the parts have only granules that a request has read.
        read |= {granule for start, end in wanted for granule in range(start // G, -(-max(end, start + 1) // G))}
        assert {granule for part in parts for granule in range(part.start // G, -(-part.end // G))} <= read
