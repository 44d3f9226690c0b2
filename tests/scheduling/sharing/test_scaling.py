"""Algorithm 1: demand is met by the most efficient instances, and the least efficient ones go first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing.scaling import (
    Choices,
    Configuration,
    Rescale,
    RunningInstance,
    SloUnmet,
    choices_of,
    load_units,
    refit,
    rescale,
)
from tests.scheduling.sharing.profiles import RESNET

SMALL, MIDDLE, LARGE = (
    Configuration(0.1, 0.2, 10, 0.08),  # 500 requests a second on a whole device
    Configuration(0.2, 0.5, 40, 0.05),  # 400
    Configuration(0.2, 1.0, 110, 0.04),  # 550
)
CHOICES = Choices([SMALL, MIDDLE, LARGE])

PARTS = st.integers(1, 20).map(lambda n: n / 20)
CONFIGURATIONS = st.builds(Configuration, PARTS, PARTS, st.floats(1e-6, 1e6), st.floats(0, 1))
PROFILES = st.lists(CONFIGURATIONS, min_size=1, max_size=12)
LOADS = st.floats(0, 1e7)


def running(*configurations: Configuration) -> list[RunningInstance]:
    return sorted(RunningInstance.of(number, each) for number, each in enumerate(configurations))


def added(load_per_s: float, *configurations: Configuration) -> tuple[tuple[Configuration, int], ...]:
    change = rescale(CHOICES, load_units(load_per_s), running(*configurations))
    assert change.remove == ()
    return change.add


def removed(load_per_s: float, *configurations: Configuration) -> tuple[int, ...]:
    change = rescale(CHOICES, load_units(load_per_s), running(*configurations))
    assert change.add == ()
    return change.remove


def capacity(configurations: Sequence[Configuration]) -> int:
    return sum(each.rate for each in configurations)


# --- scaling up


def test_the_most_efficient_ones_take_most_and_the_least_that_covers_takes_the_rest() -> None:
    assert added(225) == ((LARGE, 2), (SMALL, 1))
    assert added(231) == ((LARGE, 2), (MIDDLE, 1))
    assert added(261) == ((LARGE, 2), (LARGE, 1))
    assert added(5) == ((SMALL, 1),)


def test_a_gap_without_a_rest_adds_nothing_for_it() -> None:
    """The paper's listing demands a rest, and would add an instance for one of 0."""
    assert added(220) == ((LARGE, 2),)
    assert added(110, LARGE) == ()
    assert added(0) == ()


def test_a_configuration_that_covers_the_rest_exactly_is_enough() -> None:
    """The paper's listing wants more throughput than the rest."""
    assert added(150) == ((LARGE, 1), (MIDDLE, 1))


def test_the_gap_is_what_running_instances_leave() -> None:
    assert added(225, LARGE, MIDDLE) == ((LARGE, 1),)
    assert added(155, LARGE, MIDDLE) == ((SMALL, 1),)


def test_a_device_that_yields_hardly_more_than_a_quarter_is_not_the_least_that_covers() -> None:
    """The whole device at a fifth of the time has 14.274 requests a second, a quarter of it 14: the rest is 14.1."""
    choices = choices_of(RESNET)
    assert isinstance(choices, Choices)
    assert choices.fitting(load_units(14.1)).rate_per_s == 16
    assert choices.fitting(load_units(14.1)).area == 0.06 * 0.8


def test_published_figures() -> None:
    """ResNet's SLO of 69 ms, of the paper's Figure 12; 296.8 requests a second are those of Figure 10."""
    choices = choices_of(RESNET, 0.069)
    assert isinstance(choices, Choices)
    assert choices.best.point == (0.24, 1.0, 1)
    change = rescale(choices, load_units(296.8), ())
    assert change.add == ((choices.best, 4), (choices.fitting(load_units(16.8)), 1))
    devices = sum(configuration.area * count for configuration, count in change.add)
    assert devices <= 1.2 + 1e-9  # of time sharing it would be 296.8 / 71.37 = 4.2


# --- scaling down


def test_the_least_efficient_ones_go_while_the_rest_covers_the_load() -> None:
    assert removed(110, LARGE, SMALL, MIDDLE) == (2, 1)
    assert removed(120, LARGE, SMALL, MIDDLE) == (2,)
    assert removed(121, LARGE, SMALL, MIDDLE) == ()
    assert removed(0, LARGE, SMALL, MIDDLE) == (2, 1, 0)


def test_scaling_down_ends_at_the_first_that_does_not_fit() -> None:
    """The paper's loop has no way out here."""
    assert removed(130, LARGE, MIDDLE, SMALL) == ()


def test_of_equal_instances_the_newest_go() -> None:
    assert removed(20, SMALL, SMALL, SMALL, SMALL) == (3, 2)


# --- another share for the least efficient one


def test_a_rest_s_instance_grows_with_the_load() -> None:
    """With Algorithm 1 alone a load that grows step by step gathers one inefficient instance for each step."""
    assert refit(CHOICES, load_units(30), running(SMALL)) == (0, MIDDLE)
    assert refit(CHOICES, load_units(500), running(SMALL)) == (0, LARGE)
    assert refit(CHOICES, load_units(500), running(LARGE)) is None
    assert refit(CHOICES, load_units(140), running(LARGE, SMALL)) == (1, MIDDLE)


def test_an_instance_that_is_too_large_shrinks() -> None:
    assert refit(CHOICES, load_units(35), running(LARGE)) == (0, MIDDLE)
    assert refit(CHOICES, load_units(120), running(LARGE, MIDDLE)) == (1, SMALL)
    assert refit(CHOICES, load_units(121), running(LARGE, MIDDLE)) is None
    assert refit(CHOICES, 0, running(LARGE)) is None
    efficient = Configuration(0.1, 0.1, 50, 0.1)  # but too little for what is needed of the other
    assert refit(Choices([SMALL, LARGE, efficient]), load_units(105), running(LARGE)) is None
    assert refit(CHOICES, 1, []) is None


# --- promises of latency


def test_only_configurations_that_keep_the_promise_count() -> None:
    choices = choices_of([SMALL, MIDDLE, LARGE], 0.05)
    assert isinstance(choices, Choices)
    assert choices.by_efficiency == (LARGE, MIDDLE)
    assert choices.slo_s == 0.05


def test_a_promise_below_the_best_of_the_profile_is_answered_with_it() -> None:
    assert choices_of([SMALL, MIDDLE, LARGE], 0.03) == SloUnmet(0.03, LARGE)
    assert choices_of([], 0.03) == SloUnmet(0.03, None)


# --- ties


def test_ties_go_to_throughput_then_latency_then_fewer_sms() -> None:
    slow, fast = Configuration(0.2, 0.5, 10, 0.2), Configuration(0.5, 0.2, 10, 0.1)
    low, high = Configuration(0.4, 0.5, 20, 0.1), Configuration(0.5, 0.4, 20, 0.1)
    assert Choices([slow, high, fast, low]).by_efficiency == (low, high, fast, slow)
    assert Choices([slow, fast]).fitting(1) == fast


@given(PROFILES, st.randoms(use_true_random=False), LOADS)
def test_the_order_of_a_profile_does_not_count(profile: list[Configuration], random: Random, load_per_s: float) -> None:
    shuffled = [*profile]
    random.shuffle(shuffled)
    load = load_units(load_per_s)
    assert rescale(Choices(profile), load, ()) == rescale(Choices(shuffled), load, ())


# --- what always holds


@given(PROFILES, st.lists(st.integers(0, 11), max_size=8), LOADS)
def test_capacity_covers_the_load_and_nothing_changes_the_second_time(
    profile: list[Configuration], chosen: list[int], load_per_s: float
) -> None:
    choices, load = Choices(profile), load_units(load_per_s)
    instances = [profile[each % len(profile)] for each in chosen]
    change = rescale(choices, load, running(*instances))
    kept = [each for number, each in enumerate(instances) if number not in change.remove]
    total = capacity(kept) + sum(configuration.rate * count for configuration, count in change.add)
    assert total >= load
    if change.add:
        others = total - change.add[-1][0].rate
        assert others < load
        small = [each for each in profile if each.area < change.add[-1][0].area and others + each.rate >= load]
        assert not small or change.add[-1][0] == choices.best
    if sum(count for _, count in change.add) < 100:
        now = [*kept, *(each for each, count in change.add for _ in range(count))]
        assert rescale(choices, load, running(*now)).add == ()


@given(PROFILES, st.lists(st.integers(0, 11), max_size=8), LOADS)
def test_scaling_down_removes_as_many_as_it_can_in_order(
    profile: list[Configuration], chosen: list[int], load_per_s: float
) -> None:
    load, instances = load_units(load_per_s), running(*(profile[each % len(profile)] for each in chosen))
    removed = rescale(Choices(profile), load, instances).remove
    assert removed == tuple(each.number for each in instances[: len(removed)])
    left = instances[len(removed) :]
    assert not removed or not left or sum(each.rate for each in left[1:]) < load


@given(PROFILES, st.lists(st.integers(0, 11), min_size=1, max_size=8), LOADS)
def test_another_share_covers_the_load_with_less_or_serves_more(
    profile: list[Configuration], chosen: list[int], load_per_s: float
) -> None:
    choices, load = Choices(profile), load_units(load_per_s)
    instances = [profile[each % len(profile)] for each in chosen]
    better = refit(choices, load, running(*instances))
    if better is not None:
        number, configuration = better
        others = capacity([each for other, each in enumerate(instances) if other != number])
        if capacity(instances) >= load:
            assert others + configuration.rate >= load
            assert configuration.area < instances[number].area
        else:
            assert configuration.rate > instances[number].rate


@pytest.mark.parametrize("load_per_s", [-1.0, float("nan"), float("inf")])
def test_a_load_is_a_number(load_per_s: float) -> None:
    with pytest.raises(InvalidConfig, match="requests a second"):
        load_units(load_per_s)


@pytest.mark.parametrize(
    "point",
    [
        (0.0, 0.5, 1.0, 0.1),
        (0.5, 1.5, 1.0, 0.1),
        (0.5, 0.5, 0.0, 0.1),
        (0.5, 0.5, float("inf"), 0.1),
        (0.5, 0.5, 1.0, float("nan")),
        (0.5, 0.5, 1.0, 0.1, 0),
    ],
)
def test_a_profile_has_numbers_in_their_ranges(point: tuple[float, float, float, float]) -> None:
    with pytest.raises(InvalidConfig, match="a profile of"):
        Configuration(*point)


def test_no_change_is_empty() -> None:
    assert rescale(CHOICES, 0, ()) == Rescale()
