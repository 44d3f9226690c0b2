"""Links: what loads at the same time shares the rate."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import Prefetch
from kaas.scheduling.events import Ordered, RequestDone
from kaas.scheduling.simulation.clock import Clock, Turn, picoseconds
from kaas.scheduling.simulation.links import SimulatedLink
from kaas.scheduling.simulation.scenario_file import read
from tests.scheduling.simulation.simulations import Told, heard, requests

LINKS = {"a": {"mb_s": 2}}
FOUR_MB = {name: {"memory_mb": 4, "load_s": 1} for name in "AB"}


def ends(functions: Told, told: list[Told], *devices: Told) -> list[float]:
    """Return the times at which requests end, by request."""
    scenario = read({"links": LINKS, "devices": list(devices), "functions": functions, "requests": told})
    done = [event for event in heard(scenario) if isinstance(event, RequestDone)]
    return [event.time_s for event in sorted(done, key=lambda event: event.request)]


LINKED: Told = {"link": "a"}


def test_a_load_alone_takes_its_megabytes_over_the_rate() -> None:
    assert ends(FOUR_MB, requests((1, "A")), LINKED) == [3]


def test_a_load_takes_its_own_time_at_least() -> None:
    slow = {"A": {"memory_mb": 4, "load_s": 7}}
    assert ends(slow, requests((0, "A")), LINKED) == [7]


def test_two_loads_at_once_take_twice_as_long() -> None:
    assert ends(FOUR_MB, requests((0, "A"), (0, "B")), LINKED, LINKED) == [4, 4]


def test_a_load_that_begins_later_slows_the_first_and_then_has_the_link_alone() -> None:
    """At 1 the first has 2 of 4 MB; it gets the others by 3, and the second its last 2 MB by 4."""
    assert ends(FOUR_MB, requests((0, "A"), (1, "B")), LINKED, LINKED) == [3, 4]


def test_devices_without_the_link_load_as_ever() -> None:
    assert sorted(ends(FOUR_MB, requests((0, "A"), (0, "B")), LINKED, {})) == [1, 2]


def test_a_load_whose_megabytes_have_come_leaves_the_link_to_others() -> None:
    functions = {"A": {"memory_mb": 4, "load_s": 9}, "B": FOUR_MB["B"]}
    assert ends(functions, requests((0, "A"), (2, "B")), LINKED, LINKED) == [9, 4]


def test_a_fetch_comes_before_the_link() -> None:
    functions = {"A": {"memory_mb": 4, "fetch_s": 3}, "B": FOUR_MB["B"]}
    assert ends(functions, requests((0, "A"), (1, "B")), LINKED, LINKED) == [5, 3]


def test_a_hit_waits_for_the_load() -> None:
    told = requests((0, "A"), (1, "A"))
    assert ends({"A": {"memory_mb": 4, "run_s": 1}}, told, {"link": "a", "slots": 2}) == [3, 3]


def test_prefetches_share_the_link_one_function_after_the_other() -> None:
    """Until 4 each of two loads gets 1 MB/s; then the second of the prefetch has the link alone."""
    functions = FOUR_MB | {"C": {"memory_mb": 4}}
    told = {"links": LINKS, "devices": [LINKED, LINKED], "functions": functions, "requests": requests((0, "C"))}
    events = heard(read(told), Prefetch(0, (b"A", b"B"), 1))
    assert next((event.time_s, event.seconds) for event in events if isinstance(event, Ordered)) == (6, 6)
    assert [event.time_s for event in events if isinstance(event, RequestDone)] == [4]


def test_the_link_of_a_device_that_failed_is_free_for_others() -> None:
    """At 1 each has 1 MB of 4; B gets the other 3 by 2.5."""
    told = {
        "links": LINKS,
        "devices": [LINKED, LINKED],
        "functions": FOUR_MB,
        "requests": requests((0, "A"), (0, "B")),
    }
    first = next(event for event in heard(read(told)) if isinstance(event, RequestDone))
    failed = 1 - first.worker
    scenario = read(told | {"failures": [{"at_s": 1, "device": failed, "down_s": 9}]})
    done = [event for event in heard(scenario) if isinstance(event, RequestDone)]
    assert done[0].time_s == 2.5


def fluid(loads: list[tuple[int, int]], rate: int) -> list[Fraction]:
    """Return when loads of (begin in seconds, bytes) end, step by step and exactly."""
    left = {number: Fraction(nbytes) for number, (_, nbytes) in enumerate(loads)}
    now, ended = Fraction(0), dict[int, Fraction]()
    while left:
        active = [number for number in left if loads[number][0] <= now]
        begins = [Fraction(loads[number][0]) for number in left if loads[number][0] > now]
        if not active:
            now = min(begins)
            continue
        share = Fraction(rate, len(active))
        until = min([now + min(left[number] for number in active) / share, *begins])
        for number in active:
            left[number] -= share * (until - now)
            if not left[number]:
                del left[number]
                ended[number] = until
        now = until
    return [ended[number] for number in range(len(loads))]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 1000)), min_size=1, max_size=8), st.integers(1, 100))
def test_loads_end_as_in_a_fluid(loads: list[tuple[int, int]], rate: int) -> None:
    clock, ended = Clock(), dict[int, int]()
    link = SimulatedLink(clock, rate)

    def begin(number: int) -> None:
        link.load(number, loads[number][1], lambda _: ended.__setitem__(number, clock.now_ps))

    for number, (at_s, _) in enumerate(loads):
        clock.at(picoseconds(at_s), Turn.WORKER, (0, 0), begin, number)
    clock.finish()
    expected = [float(end) for end in fluid(loads, rate)]
    assert [ended[number] / 1e12 for number in range(len(loads))] == pytest.approx(expected, rel=1e-9)
