"""The free rectangles of one device: exactly what is free, none inside another, whatever comes and goes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing import rectangles
from kaas.scheduling.sharing.rectangles import DeviceExtent, Rectangle, Surface, cut

SIDE = 12
SIZES = st.tuples(st.integers(1, SIDE), st.integers(1, SIDE))
STEPS = st.lists(st.tuples(st.sampled_from(["place", "place", "release", "rebuild"]), SIZES), max_size=40)


def cells(found: list[Rectangle] | dict[Rectangle, None]) -> set[tuple[int, int]]:
    """Return the bitmap of rectangles: those cells that any of them covers."""
    return {
        (x, y) for left, bottom, right, top in found for x in range(left, right) for y in range(bottom, top)
    }  # fmt: skip


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return bool(cells([one]) & cells([other]))


def inside(one: Rectangle, other: Rectangle) -> bool:
    return cells([one]) <= cells([other])


def check(surface: Surface) -> None:
    whole = cells([surface.whole])
    assert cells(surface.free) == whole - cells(surface.taken)
    assert surface.free_area == len(cells(surface.free))
    assert not [pair for pair in combinations(surface.taken, 2) if overlap(*pair)]
    pairs = [*combinations(surface.free, 2)]
    assert not [pair for pair in pairs if inside(*pair) or inside(*reversed(pair))]


def maximal(surface: Surface) -> set[Rectangle]:
    """Return all maximal free rectangles, by trying every one."""
    free = cells([surface.whole]) - cells(surface.taken)
    spans = [*combinations(range(SIDE + 1), 2)]
    tried = [Rectangle(left, bottom, right, top) for left, right in spans for bottom, top in spans]
    fitting = {each for each in tried if cells([each]) <= free}

    def grown(each: Rectangle) -> list[Rectangle]:
        left, bottom, right, top = each
        return [
            Rectangle(left - 1, bottom, right, top),
            Rectangle(left, bottom - 1, right, top),
            Rectangle(left, bottom, right + 1, top),
            Rectangle(left, bottom, right, top + 1),
        ]

    return {each for each in fitting if not fitting.intersection(grown(each))}


@given(STEPS, st.sampled_from([4, rectangles.REBUILD_ABOVE]))
def test_the_list_is_what_is_free(steps: list[tuple[str, tuple[int, int]]], rebuild_above: int) -> None:
    surface = Surface(SIDE, SIDE)
    surface._rebuild_above = rebuild_above
    for step, (width, height) in steps:
        if step == "rebuild":
            surface.rebuild()
            assert {*surface.free} == maximal(surface)
        elif step == "release" and surface.taken:
            taken = [*surface.taken]
            surface.release(taken[(width * SIDE + height) % len(taken)])
        elif (room := surface.best_fit(width, height)) is not None:
            surface.take(Rectangle(room.left, room.bottom, room.left + width, room.bottom + height))
        check(surface)


@given(st.lists(SIZES, max_size=12))
def test_without_releases_every_maximal_rectangle_is_in_the_list(sizes: list[tuple[int, int]]) -> None:
    surface = Surface(SIDE, SIDE)
    for width, height in sizes:
        room = surface.best_fit(width, height)
        if room is None:
            assert not [each for each in maximal(surface) if each.width >= width and each.height >= height]
        else:
            surface.take(Rectangle(room.left, room.bottom, room.left + width, room.bottom + height))
    assert {*surface.free} == maximal(surface)
    assert not surface.stale


def test_a_cut_rectangle_is_replaced_by_its_pieces() -> None:
    """The paper's listing keeps the cut one, and loses one that is equal to another."""
    pieces = cut([Rectangle(0, 0, 10, 10)], Rectangle(4, 4, 6, 6))
    assert {*pieces} == {(0, 0, 4, 10), (6, 0, 10, 10), (0, 0, 10, 4), (0, 6, 10, 10)}
    assert cut([Rectangle(0, 0, 4, 2), Rectangle(0, 0, 2, 4)], Rectangle(2, 0, 4, 2)) == [(0, 0, 2, 4)]


def test_a_released_rectangle_comes_back_as_it_is() -> None:
    surface = Surface(10, 10)
    first, second = Rectangle(0, 0, 5, 10), Rectangle(5, 0, 10, 10)
    surface.take(first)
    surface.take(second)
    surface.release(first)
    surface.release(second)
    assert surface.free == [first, second]
    assert surface.stale
    assert surface.best_fit(6, 1) is None
    surface.rebuild()
    assert surface.free == [surface.whole]


def test_past_a_number_of_rectangles_a_release_makes_the_list_anew() -> None:
    surface = Surface(100, 100)
    columns = [Rectangle(x, 0, x + 1, 100) for x in range(rectangles.REBUILD_ABOVE + 1)]
    for column in columns:
        surface.take(column)
    for column in columns[: rectangles.REBUILD_ABOVE - 1]:
        surface.release(column)
    assert len(surface.free) == rectangles.REBUILD_ABOVE
    surface.release(columns[-2])
    assert surface.free == [(0, 0, 32, 100), (33, 0, 100, 100)]
    assert not surface.stale


@pytest.mark.parametrize(
    ("extent", "share", "size"),
    [
        (DeviceExtent(), (0.24, 0.4), (400, 240)),
        (DeviceExtent(), (0.07, 0.29), (290, 70)),  # 0.07 * 1000 is a little more than 70
        (DeviceExtent(80, 2), (0.12, 0.4), (400, 10)),
        (DeviceExtent(132, 8), (0.24, 1.0), (1000, 32)),
        (DeviceExtent(132, 8), (0.01, 0.0001), (1, 8)),
        (DeviceExtent(132, 8), (0.98, 1.0), (1000, 132)),  # the next multiple would be 136
        (DeviceExtent(1, 1), (0.01, 1e-9), (1, 1)),
    ],
)
def test_shares_are_rounded_up_to_partitions(
    extent: DeviceExtent, share: tuple[float, float], size: tuple[int, int]
) -> None:
    assert extent.size(*share) == size


@pytest.mark.parametrize("share", [(0.0, 0.5), (0.5, 0.0), (1.1, 0.5), (0.5, 1.1), (-0.1, 0.5), (float("nan"), 0.5)])
def test_a_share_is_above_0_and_at_most_1(share: tuple[float, float]) -> None:
    with pytest.raises(InvalidConfig, match="above 0, at most 1"):
        DeviceExtent().size(*share)


@pytest.mark.parametrize(("sms", "step"), [(0, 1), (8, 0), (8, 9)])
def test_a_device_has_partitions(sms: int, step: int) -> None:
    with pytest.raises(InvalidConfig, match="partitions"):
        DeviceExtent(sms, step)
