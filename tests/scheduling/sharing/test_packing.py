"""Instances on devices: the paper's example, and room that is found wherever there is some."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing.packing import DevicePacking, Spot
from kaas.scheduling.sharing.rectangles import TIME_UNITS, DeviceExtent

KINDS = {"r": (0.12, 0.4), "n": (0.24, 0.4), "b": (0.5, 0.6)}
"""ResNet, RNNT and BERT of the paper's Figure 11: SMs and time."""
FIGURE_11: dict[Hashable, tuple[float, float]] = {
    f"{kind}{number}": KINDS[kind] for kind, count in (("r", 4), ("n", 2), ("b", 2)) for number in range(count)
}
UNITS, SMALL = DeviceExtent(), DeviceExtent(10)
SHARES = st.tuples(st.integers(1, 10).map(lambda n: n / 10), st.integers(1, 5).map(lambda n: n / 5))
STEPS = st.lists(
    st.tuples(st.sampled_from(["place", "place", "release", "resize", "device"]), st.integers(0, 30), SHARES),
    max_size=40,
)


def devices(count: int, extent: DeviceExtent = UNITS) -> DevicePacking:
    return DevicePacking(dict.fromkeys(range(count), extent))


def used_by(packing: DevicePacking, shares: dict[Hashable, tuple[float, float]]) -> int:
    assert all(packing.place_all(shares).values())
    return packing.used()


@pytest.mark.parametrize("extent", [DeviceExtent(), DeviceExtent(80, 2)], ids=["units", "V100"])
def test_figure_11_takes_one_of_four_devices(extent: DeviceExtent) -> None:
    assert used_by(devices(4, extent), FIGURE_11) == 1
    over_time: dict[Hashable, tuple[float, float]] = {key: (1.0, quota) for key, (_, quota) in FIGURE_11.items()}
    assert used_by(devices(4, extent), over_time) == 4


def test_partitions_that_are_too_coarse_for_figure_11_take_two() -> None:
    """With 132 SMs in partitions of 8, a half is 72."""
    packing = devices(4, DeviceExtent(132, 8))
    assert used_by(packing, FIGURE_11) == 2
    spot = packing.spots["b0"]
    assert (spot.sms, spot.quota) == (72 / 132, 0.6)


def test_in_the_listed_order_figure_11_takes_two_devices() -> None:
    packing = devices(4)
    for key, share in FIGURE_11.items():
        assert packing.place(key, *share)
    assert packing.used() == 2


@pytest.mark.slow
def test_in_a_third_of_all_orders_figure_11_takes_one_device() -> None:
    orders = {*permutations("rrrrnnbb")}
    found = []
    for order in orders:
        packing = devices(4)
        for number, kind in enumerate(order):
            assert packing.place(number, *KINDS[kind])
        found.append(packing.used())
    assert (len(found), found.count(1), max(found)) == (420, 138, 2)


def test_an_instance_goes_where_it_leaves_least() -> None:
    packing = devices(3)
    packing.place("a", 1.0, 0.5)
    packing.place("b", 0.9, 0.9)  # on another device
    assert [packing.spots[key].device for key in "ab"] == [0, 1]
    spot = packing.place("c", 0.1, 0.5)
    assert spot is not None
    assert spot.device == 1
    assert packing.used() == 2


def test_equal_fits_go_to_the_first_device_and_the_first_place() -> None:
    packing = devices(3)
    placed = [packing.place(number, 1.0, 0.25) for number in range(5)]
    assert [(spot.device, spot.rectangle.left) for spot in placed if spot] == [
        (0, 0),
        (0, 250),
        (0, 500),
        (0, 750),
        (1, 0),
    ]


def test_released_places_are_joined_before_an_empty_device_is_used() -> None:
    packing = devices(2)
    for key in "abc":
        packing.place(key, 0.3, 1.0)
    packing.release("a")
    packing.release("b")
    spot = packing.place("d", 0.6, 1.0)
    assert spot is not None
    assert spot.device == 0


def test_a_released_place_is_the_next_one_s_of_the_same_size() -> None:
    packing = devices(1)
    before = [packing.place(key, 0.3, 0.3) for key in "abcde"]
    packing.release("c")
    assert packing.place("f", 0.3, 0.3) == before[2]


def test_what_has_no_room_changes_nothing() -> None:
    packing = devices(1)
    packing.place("a", 0.6, 0.6)
    before = {**packing.spots}
    assert packing.place("b", 0.5, 0.5) is None
    assert packing.resize("a", 1.0, 1.0) is not None
    assert packing.resize("a", 0.6, 0.6) == before["a"]
    assert packing.place("c", 0.4, 1.0) is not None
    before = {**packing.spots}
    assert packing.resize("a", 0.7, 0.7) is None
    assert packing.spots == before


def test_a_smaller_instance_stays_where_it_is() -> None:
    packing = devices(1)
    packing.place("a", 0.2, 1.0)
    old = packing.place("b", 0.5, 0.5)
    new = packing.resize("b", 0.25, 0.5)
    assert old is not None
    assert new is not None
    assert new.rectangle[:2] == old.rectangle[:2]
    assert (new.sms, new.quota) == (0.25, 0.5)


def test_a_device_goes_with_its_instances() -> None:
    packing = devices(2)
    for key in "abc":
        packing.place(key, 0.5, 1.0)
    assert packing.remove_device(0) == ["a", "b"]
    assert packing.spots.keys() == {"c"}
    assert packing.place("d", 0.6, 1.0) is None
    packing.add_device(7, DeviceExtent())
    spot = packing.place("d", 0.6, 1.0)
    assert spot is not None
    assert spot.device == 7


def test_of_devices_of_several_sizes_the_one_that_is_left_least_is_taken() -> None:
    packing = DevicePacking({0: DeviceExtent(132, 8), 1: DeviceExtent(80, 2)})
    spot = packing.place("a", 0.5, 1.0)
    assert spot is not None
    assert (spot.device, spot.sms) == (0, 72 / 132)  # rounding leaves less of it
    other = packing.place("b", 0.5, 1.0)
    assert other is not None
    assert (other.device, other.sms) == (1, 0.5)


def test_a_share_that_is_none_is_refused() -> None:
    packing = devices(1)
    with pytest.raises(InvalidConfig):
        packing.place("a", 0.0, 1.0)
    packing.place("a", 0.5, 0.5)
    with pytest.raises(InvalidConfig):
        packing.resize("a", 0.5, 2.0)
    assert packing.spots["a"].sms == 0.5


def check(packing: DevicePacking) -> None:
    """Compare places and free rectangles with a bitmap of each device, and the list of sizes with those of devices."""
    listed = set()
    for extent, sizes in packing._sizes.items():
        assert sizes._sizes == sorted(sizes._spots)
        for size, spots in sizes._spots.items():
            assert spots == sorted(spots)
            for device, rectangle in spots:
                assert size == (rectangle.area, rectangle.width, rectangle.height)
                assert packing._extents[device] == extent
                listed.add((device, rectangle))
    assert listed == {
        (device, rectangle) for device, surface in packing._surfaces.items() for rectangle in surface.open
    }
    for device, surface in packing._surfaces.items():
        here = [spot.rectangle for spot in packing.spots.values() if spot.device == device]
        assert sorted(here) == sorted(surface.taken)
        columns = TIME_UNITS // 5
        taken = [cell for spot in here for cell in cells(spot, columns)]
        assert len(taken) == len({*taken})
        whole = {(x, y) for x in range(5) for y in range(surface.whole.height)}
        assert {cell for each in surface.free for cell in cells(each, columns)} == whole - {*taken}


def cells(rectangle: tuple[int, int, int, int], columns: int) -> set[tuple[int, int]]:
    left, bottom, right, top = rectangle
    return {(x, y) for x in range(left // columns, right // columns) for y in range(bottom, top)}


def fits(spots: Collection[Spot], device: int, extent: DeviceExtent, share: tuple[float, float]) -> bool:
    """Return whether the bitmap of a device has room for a share, and its slots time."""
    columns = TIME_UNITS // 5
    width, height = extent.size(*share)
    here = [spot.rectangle.width for spot in spots if spot.device == device]
    if extent.slots is not None and sum(here) + width > extent.slots * TIME_UNITS:
        return False
    taken = {cell for spot in spots if spot.device == device for cell in cells(spot.rectangle, columns)}
    wanted = [(x, y) for x in range(width // columns) for y in range(height)]
    corners = [(x, y) for x in range(5 - width // columns + 1) for y in range(extent.sms - height + 1)]
    return any(not taken.intersection((left + x, bottom + y) for x, y in wanted) for left, bottom in corners)


@given(STEPS)
def test_places_never_overlap_and_room_is_found_where_there_is_some(
    steps: list[tuple[str, int, tuple[float, float]]],
) -> None:
    packing = DevicePacking({0: SMALL, 1: DeviceExtent(10, slots=2), 2: DeviceExtent(4, 2)})
    placed: dict[int, Spot] = {}
    for number, (step, chosen, share) in enumerate(steps):
        key = [*placed][chosen % len(placed)] if placed else None
        if step == "device" and chosen % 3 in packing._extents and len(packing._extents) > 1:
            lost = packing.remove_device(chosen % 3)
            assert {*lost} == {each for each, spot in placed.items() if spot.device == chosen % 3}
            placed = {each: spot for each, spot in placed.items() if each not in lost}
        elif step == "device" and chosen % 3 not in packing._extents:
            packing.add_device(chosen % 3, SMALL)
        elif step == "release" and key is not None:
            packing.release(key)
            del placed[key]
        elif step == "resize" and key is not None:
            spot, others = placed[key], [each for other, each in placed.items() if other != key]
            room = fits(others, spot.device, spot.extent, share)
            resized = packing.resize(key, *share)
            assert (resized is not None) == room
            assert resized is None or resized.device == placed[key].device
            placed[key] = resized or placed[key]
        elif step == "place":
            room = any(fits(placed.values(), device, extent, share) for device, extent in packing._extents.items())
            found = packing.place(number, *share)
            assert (found is not None) == room
            if found is not None:
                assert (found.rectangle.width, found.rectangle.height) == found.extent.size(*share)
                assert found.sms >= share[0]
                placed[number] = found
        assert packing.spots == placed
        check(packing)
    assert not [pair for pair in combinations(placed.values(), 2) if pair[0] == pair[1]]
