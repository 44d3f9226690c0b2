"""Memory in the simulator: what makes room, what waits for room, and what host memory keeps."""

from __future__ import annotations

import pytest

from kaas.scheduling.decisions import Evict, EvictTo
from kaas.scheduling.events import Outcome, RequestDone, Residency
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.simulations import evicted, heard, places, requests, run, script

FOUR = {name: {"memory_mb": 4, "load_s": 1} for name in "ABCD"}


def test_the_function_used_longest_ago_leaves_first_however_often_it_was_used() -> None:
    told = requests((0, "C"), (2, "D"), (4, "B"), (6, "A"))
    result = run(devices=[{"memory_mb": 12, "cached": ["A", "B"]}], functions=FOUR, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.0, "load"), (2, 0, 4.0, "hit"), (3, 0, 6.0, "load")]
    assert evicted(result) == [(), ("A",), (), ("C",)]
    assert result.summary.evictions == 2


def test_cached_is_least_recently_used_first() -> None:
    result = run(devices=[{"memory_mb": 8, "cached": ["B", "A"]}], functions=FOUR, requests=requests((0, "C")))
    assert evicted(result) == [("B",)]


def test_several_objects_are_evicted_in_order_for_a_large_one() -> None:
    functions = FOUR | {"E": {"memory_mb": 12}}
    told = requests((0, "D"), (2, "A"), (4, "E"))
    result = run(devices=[{"memory_mb": 16, "cached": ["A", "B", "C"]}], functions=functions, requests=told)
    assert evicted(result) == [(), (), ("B", "C", "D")]


def test_a_function_larger_than_every_device_is_rejected_on_arrival() -> None:
    functions = {"A": {"memory_mb": 9}, "B": {"memory_mb": 8}}
    result = run(devices=[{"memory_mb": 8}], functions=functions, requests=requests((1, "A"), (1, "B")))
    assert places(result) == [(1, 0, 1.0, "load")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 1.0, "memory")]
    assert result.summary.per_client["default"].requests == 2


def test_a_function_larger_than_a_device_does_not_run_there() -> None:
    functions = {"A": {"memory_mb": 9, "run_s": 1}, "B": {"run_s": 1}}
    told = requests((0, "A"), (0, "A"), (0, "B"))
    result = run(devices=[{"memory_mb": 9}, {"memory_mb": 8}], functions=functions, requests=told)
    assert len(result.dispatches) + len(result.rejected) == 3
    assert {each.device for each in result.dispatches if each.request != 2} <= {0}
    assert {each.reason for each in result.rejected} <= {"memory"}


def test_slots_run_in_parallel_and_a_dispatch_waits_for_room() -> None:
    """A runs to 3, B needs its room; the second A, which came after B, does not pass it."""
    functions = {"A": {"memory_mb": 6, "load_s": 1, "run_s": 2}, "B": {"memory_mb": 6, "run_s": 1}}
    told = requests((0, "A"), (1, "B"), (1.5, "A"))
    result = run(devices=[{"memory_mb": 8, "slots": 3}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 3.0, "load"), (2, 0, 4.0, "load")]
    assert evicted(result) == [(), ("A",), ("B",)]


def test_an_object_being_loaded_counts_as_cached_and_is_waited_for() -> None:
    told = requests((0, "A"), (1, "A"), (2.5, "B"))
    functions = {"A": {"memory_mb": 4, "load_s": 2, "run_s": 1}, "B": {"memory_mb": 8}}
    result = run(devices=[{"memory_mb": 8, "slots": 2}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 1.0, "hit"), (2, 0, 3.0, "load")]
    assert result.summary.mean_latency_s == pytest.approx((3 + 2 + 0.5) / 3)
    assert result.summary.device_busy_s == (4.0,)


# --- the store, the host and the device


FETCHED = {name: {"memory_mb": 4, "fetch_s": 3, "load_s": 1, "run_s": 1} for name in "AB"}
A_B_A = requests((0, "A"), (10, "B"), (20, "A"))


@pytest.mark.parametrize(
    ("host_mb", "starts"),
    [
        (None, ["fetch", "fetch", "load"]),
        (8, ["fetch", "fetch", "load"]),
        (4, ["fetch", "fetch", "fetch"]),
        (2, ["fetch", "fetch", "fetch"]),
    ],
)
def test_what_fell_out_of_host_memory_is_fetched_again(host_mb: float | None, starts: list[str]) -> None:
    result = run(devices=[{"memory_mb": 4, "host_mb": host_mb}], functions=FETCHED, requests=A_B_A)
    assert [each.start for each in result.dispatches] == starts
    took_s = {"fetch": 5, "load": 2}
    assert result.summary.mean_latency_s == pytest.approx(sum(took_s[each] for each in starts) / 3)
    assert (result.summary.fetches, result.summary.loads) == (starts.count("fetch"), starts.count("load"))


def test_the_host_keeps_what_was_used_last() -> None:
    functions = FETCHED | {"C": FETCHED["A"]}
    told = requests((0, "A"), (10, "B"), (20, "A"), (30, "C"), (40, "A"), (50, "B"))
    result = run(devices=[{"memory_mb": 4, "host_mb": 8}], functions=functions, requests=told)
    assert [each.start for each in result.dispatches] == ["fetch", "fetch", "load", "fetch", "load", "fetch"]


def test_the_host_has_what_is_cached_from_the_start() -> None:
    told = requests((0, "B"), (10, "A"))
    result = run(devices=[{"memory_mb": 4, "cached": ["A"]}], functions=FETCHED, requests=told)
    assert [each.start for each in result.dispatches] == ["fetch", "load"]


@pytest.mark.parametrize(("host_mb", "hosted"), [(None, (b"A",)), (4, ())])
def test_the_policy_hears_what_the_host_still_has(host_mb: float | None, hosted: tuple[bytes, ...]) -> None:
    told = {"devices": [{"memory_mb": 4, "host_mb": host_mb}], "functions": FETCHED, "requests": A_B_A[:2]}
    events = [event for event in heard(read(told)) if isinstance(event, Residency | RequestDone)]
    assert events == [
        Residency(5.0, 0, (b"A",), ()),
        RequestDone(5.0, 0, 0, 0, Outcome.SUCCEEDED, 5.0, 1.0, 4.0, 4 << 20),
        Residency(15.0, 0, (b"B",), (b"A",), hosted),
        RequestDone(15.0, 1, 0, 0, Outcome.SUCCEEDED, 5.0, 1.0, 4.0, 4 << 20),
    ]


def test_what_is_evicted_to_nothing_is_fetched_anew_and_what_the_host_lacks_cannot_go_there() -> None:
    told = {"devices": [{"cached": ["A"], "host_mb": 8}], "functions": FETCHED, "requests": requests((1, "A"))}
    scenario = read(told)
    assert simulate(scenario, script(Evict(0, (b"A",)))).dispatches[0].start == "fetch"
    assert simulate(scenario, script(Evict(0, (b"A",), to=EvictTo.HOST))).dispatches[0].start == "load"
    lacking = read(told | {"devices": [{"cached": ["A"], "host_mb": 2}]})
    assert simulate(lacking, script(Evict(0, (b"A",), to=EvictTo.HOST))).dispatches[0].start == "hit"
