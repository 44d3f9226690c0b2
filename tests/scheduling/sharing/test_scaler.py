"""Instances of functions on devices: every load is served or said to be missing, and nothing flaps."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing.rectangles import TIME_UNITS, DeviceExtent
from kaas.scheduling.sharing.scaler import MOST_INSTANCES, Grant, Rescaling, Scaler
from kaas.scheduling.sharing.scaling import Choices, Configuration, choices_of, load_units
from tests.scheduling.sharing.profiles import RESNET

HOLD_S = 60.0
UNITS = DeviceExtent()
HALF = Configuration(0.5, 1.0, 100, 0.1)
QUARTER = Configuration(0.25, 1.0, 40, 0.1)
NARROW = Configuration(0.25, 0.5, 15, 0.1)
PROFILE = (HALF, QUARTER, NARROW)


def scaler(devices: int = 1, *functions: str, headroom: float = 0.0, extent: DeviceExtent = UNITS) -> Scaler:
    made = Scaler(dict.fromkeys(range(devices), extent), hold_s=HOLD_S, headroom=headroom)
    for function in functions or ("f",):
        made.add_function(function, Choices(PROFILE))
    return made


def shares(grants: tuple[Grant, ...]) -> Counter[Configuration]:
    return Counter(grant.configuration for grant in grants)


def nothing(done: Rescaling) -> bool:
    return not (done.added or done.removed or done.resized)


# --- up


def test_the_first_load_gets_what_it_needs() -> None:
    done = scaler(2).decide("f", 230, 0.0)
    assert shares(done.added) == {HALF: 2, QUARTER: 1}
    assert [grant.spot.device for grant in done.added] == [0, 0, 1]
    assert (done.removed, done.resized, done.missing_per_s) == ((), (), 0.0)


def test_a_profile_of_tiny_parts_brings_no_more_instances_than_a_pool_can_look_through() -> None:
    made = Scaler({0: UNITS}, hold_s=HOLD_S)
    made.add_function("f", Choices((Configuration(0.001, 0.001, 0.001, 0.0),)))
    done = made.decide("f", 1e6, 0.0)
    assert len(done.added) == MOST_INSTANCES
    assert done.missing_per_s > 0


@pytest.mark.parametrize(("slots", "instances"), [(1, 1), (2, 2), (3, 3), (None, 4)])
def test_a_device_has_no_more_instances_than_run_at_a_time(slots: int | None, instances: int) -> None:
    made = Scaler({0: DeviceExtent(slots=slots)}, headroom=0.0)
    choices = choices_of([Configuration(0.24, 1.0, 100.0, 0.012)], 0.069)
    assert isinstance(choices, Choices)
    made.add_function("f", choices)
    assert len(made.decide("f", 400.0, 0.0).added) == instances
    assert made.missing_of("f") == pytest.approx(400.0 - 100.0 * instances)


def test_the_same_load_changes_nothing() -> None:
    made = scaler(2)
    made.decide("f", 230, 0.0)
    assert nothing(made.decide("f", 230, 0.0))
    assert nothing(made.decide("f", 230, 1e6))


def test_a_load_that_grows_changes_the_share_of_the_least_efficient_instance() -> None:
    made = scaler()
    (first,) = made.decide("f", 10, 0.0).added
    done = made.decide("f", 30, 1.0)
    ((old, new),) = done.resized
    assert old == first
    assert (new.number, new.configuration, new.spot.device) == (first.number, QUARTER, 0)
    assert (done.added, done.removed) == ((), ())
    done = made.decide("f", 110, 2.0)
    assert [each.configuration for _, each in done.resized] == [HALF]
    assert shares(done.added) == {NARROW: 1}


def test_headroom_is_provided_on_top_of_the_load() -> None:
    assert shares(scaler(headroom=0.2).decide("f", 80, 0.0).added) == {HALF: 1}
    assert shares(scaler(headroom=0.3).decide("f", 80, 0.0).added) == {HALF: 1, NARROW: 1}


def test_where_the_best_has_no_room_the_most_efficient_that_has_room_takes_its_place() -> None:
    made = scaler(1, "f", "g")
    made.decide("f", 140, 0.0)
    done = made.decide("g", 50, 0.0)
    assert shares(done.added) == {QUARTER: 1}
    assert done.missing_per_s == 10
    assert made.missing_per_s() == {"g": 10.0}


def test_what_cannot_be_placed_is_said() -> None:
    made = scaler(1, "f", "g")
    assert made.decide("f", 1e9, 0.0).missing_per_s == 1e9 - 200
    assert made.decide("g", 50, 0.0) == Rescaling("g", missing_per_s=50.0)
    assert made.missing_per_s() == {"f": 1e9 - 200, "g": 50.0}
    made.add_device(1, DeviceExtent())
    assert made.decide("g", 50, 1.0).missing_per_s == 0
    assert made.missing_per_s() == {"f": 1e9 - 200}


# --- down


def test_instances_stay_while_a_recent_load_needed_them() -> None:
    made = scaler(2)
    made.decide("f", 230, 0.0)
    assert nothing(made.decide("f", 10, HOLD_S))
    done = made.decide("f", 10, HOLD_S + 1)
    assert shares(done.removed) == {HALF: 1, QUARTER: 1}
    assert [(old.configuration, new.configuration) for old, new in done.resized] == [(HALF, NARROW)]


def test_a_load_that_swings_changes_nothing() -> None:
    made = scaler(2)
    made.decide("f", 230, 0.0)
    assert not [second for second in range(600) if not nothing(made.decide("f", (230, 90)[second // 25 % 2], second))]


def test_without_load_nothing_stays() -> None:
    made = scaler(2)
    added = made.decide("f", 230, 0.0).added
    made.decide("f", 0, 1.0)
    assert made.decide("f", 0, 100.0).removed == added
    assert [*made.grants()] == []


def test_a_clock_that_goes_back_is_no_reason_to_shrink() -> None:
    made = scaler(2)
    made.decide("f", 230, 1000.0)
    assert nothing(made.decide("f", 10, 0.0))
    assert nothing(made.decide("f", 10, 1050.0))
    assert made.decide("f", 10, 1061.0).removed


# --- functions and devices that come and go


def test_a_device_that_disappears_takes_its_instances_with_it() -> None:
    made = scaler(2)
    added = made.decide("f", 230, 0.0).added
    assert made.remove_device(0) == added[:2]
    assert [*made.grants("f")] == [added[2]]
    done = made.decide("f", 230, 1.0)
    assert shares(done.added) == {HALF: 1}
    assert [(old.configuration, new.configuration) for old, new in done.resized] == [(QUARTER, HALF)]
    assert done.missing_per_s == 30


def test_a_removed_function_frees_its_places() -> None:
    made = scaler(1, "f", "g")
    added = made.decide("f", 200, 0.0).added
    assert made.remove_function("f") == added
    assert made.decide("g", 200, 0.0).missing_per_s == 0
    with pytest.raises(KeyError):
        made.decide("f", 1, 0.0)


def test_another_profile_replaces_what_it_no_longer_promises() -> None:
    made = scaler(2)
    before = made.decide("f", 230, 0.0).added
    slower = Configuration(0.5, 1.0, 60, 0.1)
    made.add_function("f", Choices([slower]))
    assert [grant.configuration for grant in made.grants()] == [slower, slower, QUARTER]
    done = made.decide("f", 230, 1.0)
    assert done.removed == before[2:]
    assert shares(done.added) == {slower: 2}


def test_a_promise_of_latency_leaves_out_slow_configurations() -> None:
    made = Scaler({0: DeviceExtent()}, headroom=0.0)
    choices = choices_of(RESNET, 0.069)
    assert isinstance(choices, Choices)
    made.add_function("resnet", choices)
    done = made.decide("resnet", 250, 0.0)
    assert done.missing_per_s == 0
    assert all(grant.configuration.p99_s <= 0.069 for grant in done.added)


def test_what_is_granted_is_rounded_up_to_partitions() -> None:
    made = scaler(extent=DeviceExtent(132, 8))
    (grant,) = made.decide("f", 40, 0.0).added
    assert grant.configuration.sms == 0.25
    assert grant.spot.sms == 40 / 132


@pytest.mark.parametrize(("hold_s", "headroom"), [(-1.0, 0.0), (0.0, -0.1), (float("nan"), 0.0)])
def test_negative_numbers_are_refused(hold_s: float, headroom: float) -> None:
    with pytest.raises(InvalidConfig, match="0 or more"):
        Scaler({}, hold_s=hold_s, headroom=headroom)


def test_a_load_that_is_no_number_changes_nothing() -> None:
    made = scaler()
    made.decide("f", 100, 0.0)
    before = [*made.grants()]
    with pytest.raises(InvalidConfig):
        made.decide("f", float("nan"), 0.0)
    assert [*made.grants()] == before


# --- what always holds

PARTS = st.integers(1, 10).map(lambda n: n / 10)
PROFILES = st.lists(
    st.builds(Configuration, PARTS, PARTS, st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=8
)
Step = tuple[str, str, float, float, list[Configuration]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["decide"] * 6 + ["device", "profile", "remove"]),
        st.sampled_from("fgh"),
        st.floats(0, 500),
        st.floats(-10, 100),
        PROFILES,
    ),
    max_size=30,
)


def check(made: Scaler, known: dict[tuple[str, int], Grant]) -> None:
    """Compare the grants with what decisions have said, and look that they fit beside each other."""
    grants = [*made.grants()]
    assert {(grant.function, grant.number): grant for grant in grants} == known
    on_device = defaultdict(list)
    for grant in grants:
        on_device[grant.spot.device].append(grant.spot.rectangle)
        assert grant.spot.rectangle[:2] >= (0, 0)
        assert grant.spot.rectangle.right <= TIME_UNITS
        assert grant.spot.rectangle.top <= grant.spot.extent.sms
    for found in on_device.values():
        for one, other in combinations(found, 2):
            apart = one.left >= other.right or other.left >= one.right
            assert apart or one.bottom >= other.top or other.bottom >= one.top
    assert made.packing.spots == {grant.number: grant.spot for grant in grants}
    assert made._functions_of == {grant.number: grant.function for grant in grants}


def capacity(made: Scaler, function: str) -> int:
    return sum(grant.configuration.rate for grant in made.grants(function))


def smallest_has_no_room(made: Scaler, function: str) -> bool:
    """Try each configuration on a copy of the packing."""
    packing, choices = made.packing, made._functions[function].choices
    for configuration in choices.by_efficiency:
        if packing.place("probe", configuration.sms, configuration.quota) is not None:
            packing.release("probe")
            return False
    return True


@given(STEPS)
def test_every_load_is_served_or_missing_and_grants_are_what_decisions_say(steps: list[Step]) -> None:
    made = Scaler({0: DeviceExtent(10), 1: DeviceExtent(10), 2: DeviceExtent(4, 2)}, hold_s=HOLD_S, headroom=0.0)
    known: dict[tuple[str, int], Grant] = {}
    devices, functions, now_s = {0, 1, 2}, set[str](), 0.0
    recent: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for step, function, load_per_s, seconds, profile in steps:
        now_s += seconds
        if step == "device" and len(devices) > 1:
            device = sorted(devices)[int(load_per_s) % len(devices)]
            devices.remove(device)
            for grant in made.remove_device(device):
                assert grant.spot.device == device
                del known[grant.function, grant.number]
        elif step == "device":
            device = next(each for each in range(3) if each not in devices)
            devices.add(device)
            made.add_device(device, DeviceExtent(10))
        elif step == "remove" and function in functions:
            functions.remove(function)
            for grant in made.remove_function(function):
                del known[function, grant.number]
            recent[function] = []
        elif step == "profile" or function not in functions:
            functions.add(function)
            made.add_function(function, Choices(profile))
            known |= {(function, grant.number): grant for grant in made.grants(function)}
        else:
            done = made.decide(function, load_per_s, now_s)
            for grant in done.removed:
                assert known.pop((function, grant.number)) == grant
            for old, new in done.resized:
                assert known[function, old.number] == old
                assert (new.number, new.spot.device) == (old.number, old.spot.device)
                known[function, old.number] = new
            for grant in done.added:
                assert (function, grant.number) not in known
                known[function, grant.number] = grant
            load, has = load_units(load_per_s), capacity(made, function)
            assert has >= load or load - has == pytest.approx(done.missing_per_s * 1e6, abs=1)
            assert has < load or done.missing_per_s == 0
            time_s = max([now_s, *(at_s for at_s, _ in recent[function])])
            recent[function].append((time_s, load))
            promised = made._functions[function].choices.points
            assert all(grant.configuration.point in promised for grant in made.grants(function))
            # without new instances, one goes only if those that stay cover all recent loads
            if done.removed and not done.missing_per_s:
                assert has >= max(each for at_s, each in recent[function] if at_s >= time_s - HOLD_S) or done.added
            if done.missing_per_s:
                assert smallest_has_no_room(made, function)
            assert nothing(made.decide(function, load_per_s, now_s))
        check(made, known)
