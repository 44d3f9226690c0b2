"""The rules of cfs_affinity and exclusive, as scenarios calculated by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate

Told = dict[str, Any]
Place = tuple[int, int, float, str]


def run(policy: Told | str, **told: Any) -> Simulated:
    return simulate(read({"policy": {"name": policy} if isinstance(policy, str) else policy, **told}))


def places(result: Simulated) -> list[Place]:
    """Return request, device, time and kind of start of each dispatch."""
    return [(each.request, each.device, each.at_s, each.start) for each in result.dispatches]


def order(result: Simulated) -> list[tuple[int, int]]:
    return [(each.request, each.device) for each in result.dispatches]


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


# --- cfs_affinity

LAST = {"name": "cfs_affinity", "affinity": "last"}
TWO = {"A": {"client": "a", "run_s": 1}, "B": {"client": "b", "run_s": 1}}


@pytest.mark.parametrize("policy", [LAST, "cfs_affinity"])
def test_the_least_charged_client_runs_first_and_ties_go_to_the_oldest_request(policy: Told | str) -> None:
    """b has had 3, 4, then 5 as a has, whose request is older."""
    clients = {"a": {"runtime_s": 5}, "b": {"runtime_s": 3}}
    told = requests((0, "A"), (0, "B"), (0, "B"), (0, "A"), (0, "B"))
    result = run(policy, devices=[{"busy_until_s": 1}], functions=TWO, clients=clients, requests=told)
    assert [(each.request, each.at_s) for each in result.dispatches] == [(1, 1), (2, 2), (0, 3), (4, 4), (3, 5)]


def test_weights_divide_charges() -> None:
    """a has had 4 by weight 4, then 1.25, 1.5 ...; b 1.1."""
    clients = {"a": {"runtime_s": 4, "weight": 4}, "b": {"runtime_s": 1.1}}
    told = requests((0, "B"), (0, "A"), (0, "A"), (0, "B"))
    result = run(LAST, devices=[{"busy_until_s": 1}], functions=TWO, clients=clients, requests=told)
    assert [each.request for each in result.dispatches] == [1, 0, 2, 3]


FIGURE = {f"F{n}": {"client": f"c{n}", "run_s": 10} for n in range(3)}


def test_the_paper_figure_6a_least_time_with_affinity() -> None:
    """On device 3 the three have 1 + 10 x 0.1, 1.5 and 1.2 + 10 x 0.1."""
    clients = {
        "c0": {"runtime_s": 1.0, "affinity": [0], "mean_run_s": 0.1},
        "c1": {"runtime_s": 1.5, "affinity": [3], "mean_run_s": 0.1},
        "c2": {"runtime_s": 1.2, "affinity": [1], "mean_run_s": 0.1},
    }
    devices = [{"busy_until_s": 9}, {"busy_until_s": 9}, {"busy_until_s": 9}, {"busy_until_s": 1}]
    told = requests((0, "F0"), (0, "F1"), (0, "F2"))
    result = run(LAST, devices=devices, functions=FIGURE, clients=clients, requests=told)
    assert places(result)[0] == (1, 3, 1.0, "load")


def test_the_penalty_is_not_divided_by_the_weight() -> None:
    """On device 0 a has 4 / 4 + 10 x 0.2 = 3, not 1.5; b has 2."""
    clients = {
        "a": {"runtime_s": 4, "weight": 4, "affinity": [1], "mean_run_s": 0.2},
        "b": {"runtime_s": 2, "affinity": [0], "mean_run_s": 0.2},
    }
    devices = [{"busy_until_s": 1}, {"busy_until_s": 100}]
    result = run(LAST, devices=devices, functions=TWO, clients=clients, requests=requests((0, "A"), (0, "B")))
    assert [each.request for each in result.dispatches] == [1, 0]


def test_a_device_never_waits_for_the_client_that_is_affine_to_it() -> None:
    """Device 0 is free first: there a has 0 + 10 x 1, b 5. Then device 1 takes a."""
    clients = {"a": {"affinity": [1], "mean_run_s": 1}, "b": {"runtime_s": 5, "affinity": [0], "mean_run_s": 1}}
    devices = [{"busy_until_s": 1}, {"busy_until_s": 1}]
    result = run(LAST, devices=devices, functions=TWO, clients=clients, requests=requests((0, "A"), (0, "B")))
    assert order(result) == [(1, 0), (0, 1)]


def test_of_idle_devices_the_affine_one_is_least() -> None:
    clients = {"a": {"affinity": [2], "mean_run_s": 1}}
    result = run(LAST, devices=[{}] * 3, functions=TWO, clients=clients, requests=requests((0, "A"), (5, "A")))
    assert order(result) == [(0, 2), (1, 2)]
    without = run(LAST, devices=[{}] * 3, functions=TWO, clients={"a": {}}, requests=requests((0, "A"), (5, "A")))
    assert order(without) == [(0, 0), (1, 0)]


def test_the_affine_device_has_the_bytes_or_ran_the_client_last() -> None:
    functions = {"A": {"client": "a", "memory_mb": 4, "load_s": 1, "run_s": 1}}
    told: Told = {
        "devices": [{}, {"cached": ["A"]}],
        "functions": functions,
        "clients": {"a": {"affinity": [0], "mean_run_s": 1}},
        "requests": requests((0, "A"), (9, "A")),
    }
    assert places(run("cfs_affinity", **told)) == [(0, 1, 0.0, "hit"), (1, 1, 9.0, "hit")]
    assert places(run(LAST, **told)) == [(0, 0, 0.0, "load"), (1, 0, 9.0, "hit")]


def test_a_later_client_gains_nothing_from_its_absence() -> None:
    """At 5.5 a has had 5 and runs its sixth: b comes in where that one began, at 5, and they take turns."""
    told = requests(*[(0, "A")] * 10, *[(5.5, "B")] * 3)
    result = run(LAST, functions=TWO, requests=told)
    began = [("A" if each.request < 10 else "B") for each in result.dispatches]
    assert "".join(began) == "AAAAAABABABAA"


def test_an_estimate_is_charged_at_once_and_put_right_at_the_end() -> None:
    """At 1 both have 0; a's request counts 5 at once, so b is next. At 11 a has had 10 and b 1; then b, 10 + 5.5."""
    functions = {"A": {"client": "a", "run_s": 10}, "B": {"client": "b", "run_s": 10}}
    clients = {name: {"affinity": [0], "mean_run_s": mean_s} for name, mean_s in (("a", 5), ("b", 1))}
    told = requests((0, "A"), (0, "A"), (0, "B"), (0, "B"))
    devices = [{"busy_until_s": 1, "slots": 2}]
    result = run(LAST, devices=devices, functions=functions, clients=clients, requests=told)
    assert [each.request for each in result.dispatches] == [0, 2, 3, 1]


def test_loads_are_charged_too() -> None:
    """a's first request takes 3 + 1, so b has two turns of 2."""
    functions = {"A": {"client": "a", "run_s": 1, "load_s": 3}, "B": {"client": "b", "run_s": 2}}
    told = requests((0, "A"), (0, "A"), (0, "B"), (0, "B"), (0, "B"))
    result = run(LAST, functions=functions, clients={"a": {}, "b": {}}, requests=told)
    assert [each.request for each in result.dispatches] == [0, 2, 3, 1, 4]
    assert result.summary.per_client["a"].charged_s == 5.0


def test_etasks_and_ktasks_share_devices_and_are_charged() -> None:
    functions = {"K": {"client": "a", "run_s": 1}, "E": {"client": "b", "run_s": 1, "cold_s": 0.5, "kind": "etask"}}
    told = requests((0, "K"), (0, "E"), (5, "E"))
    result = run("cfs_affinity", devices=[{}, {}], functions=functions, requests=told)
    assert sorted(each.request for each in result.dispatches) == [0, 1, 2]
    begun = {each.request: each for each in result.dispatches}
    assert begun[1].start == "cold"
    assert begun[2].start == "hit"
    assert begun[0].device != begun[1].device
    assert result.summary.per_client["b"].charged_s == 2.5


# --- static


def test_shares_are_an_option() -> None:
    told: Told = {"devices": [{}] * 3, "functions": TWO, "requests": requests((0, "A"), (0, "A"), (0, "B"), (0, "B"))}
    result = run({"name": "static", "shares": {"b": 2, "a": [2]}}, **told)
    assert sorted(places(result)) == [(0, 2, 0.0, "load"), (1, 2, 1.0, "hit"), (2, 0, 0.0, "load"), (3, 1, 0.0, "load")]
    with pytest.raises(InvalidScenario) as caught:
        run({"name": "static", "shares": {"a": 4}}, **told)
    assert caught.value.path == "policy"
    with pytest.raises(InvalidScenario) as caught:
        run({"name": "static", "share": {}}, **told)
    assert caught.value.path == "policy.share"


# --- exclusive


def test_the_smallest_scenario() -> None:
    """An owner with one function, busy until 1, its memory there."""
    devices = [
        {"memory_mb": 8, "cached": ["A"], "busy_until_s": 1.0, "owner": "c0", "kind": "gpu", "slots": 1},
    ]
    functions = {
        "A": {
            "memory_mb": 4,
            "load_s": 2.0,
            "run_s": 1.0,
            "cold_s": 0.0,
            "kind": "ktask",
            "client": "c0",
            "weight": 1.0,
        }
    }
    clients = {"c0": {"weight": 1.0, "runtime_s": 0.0, "affinity": [0], "mean_run_s": 0.1}}
    told = [{"at_s": 0.0, "function": "A", "client": "c0", "run_s": None, "deadline_s": None}]
    result = run("exclusive", seed=0, devices=devices, functions=functions, clients=clients, requests=told)
    assert places(result) == [(0, 0, 1.0, "hit")]
    assert result.summary.per_client["c0"].charged_s == 1.0


def test_a_worker_starts_cold_stays_warm_and_pays_once() -> None:
    functions = {"A": {"client": "a", "cold_s": 0.5, "load_s": 2, "run_s": 1}}
    result = run("exclusive", functions=functions, requests=requests((0, "A"), (4, "A")))
    assert places(result) == [(0, 0, 0.5, "cold"), (1, 0, 4.0, "hit")]
    assert result.summary.per_client["a"].charged_s == 4.5
    assert result.summary.device_busy_s == (4.5,)


def owned(*owners: str | None, **more: Any) -> list[Told]:
    return [{"owner": owner, **more} for owner in owners]


FOUR = {name.upper(): {"client": name, "cold_s": 0.5, "load_s": 0.25, "run_s": 1} for name in ("c", "x", "y", "z")}


def test_the_paper_figure_6b_an_idle_worker_of_the_largest_pool_is_stopped() -> None:
    devices = [
        {"owner": "x", "busy_until_s": 9},
        {"owner": "y", "busy_until_s": 9, "cached": ["Y"]},
        {"owner": "y", "cached": ["Y"]},
    ]
    result = run("exclusive", devices=devices, functions=FOUR, requests=requests((0, "C"), (3, "Y")))
    assert places(result) == [(0, 2, 0.5, "cold"), (1, 1, 9.0, "hit")]
    assert [each.evicted for each in result.dispatches] == [(), ()]


def test_a_device_without_a_worker_is_taken_before_one_with_an_owner() -> None:
    result = run("exclusive", devices=owned("c", "c", None), functions=FOUR, requests=requests((0, "X")))
    assert places(result) == [(0, 2, 0.5, "cold")]


def test_a_client_among_the_largest_waits() -> None:
    result = run("exclusive", devices=owned("c", "x"), functions=FOUR, requests=requests((0, "C"), (0, "C")))
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 1.25, "hit")]


def test_a_smaller_client_takes_a_device_and_ties_go_to_the_least_recent_loser() -> None:
    """c and x have two each. y takes from c, first by appearance; z from x, which is the largest. A second function of
    c's has nothing: of pools of one, y and z never lost; y came first, and its worker ends what it runs."""
    functions = FOUR | {"D": {"client": "c", "cold_s": 0.5}}
    owner = {"client": "c", "function": "C"}
    told = requests((0, "Y"), (0, "Z"), (0, "D"))
    devices = [{"owner": owner}, {"owner": owner}, {"owner": "x"}, {"owner": "x"}]
    result = run("exclusive", devices=devices, functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.5, "cold"), (1, 2, 0.5, "cold"), (2, 0, 2.25, "cold")]


def test_of_busy_workers_the_one_that_is_free_soonest_is_stopped() -> None:
    devices = [{"owner": "c", "busy_until_s": 5}, {"owner": "c", "busy_until_s": 2}]
    result = run("exclusive", devices=devices, functions=FOUR, requests=requests((0, "X")))
    assert places(result) == [(0, 1, 2.5, "cold")]


def test_a_device_is_kept_for_its_reservation() -> None:
    """c's second request gets it back only once x has run there; what stops empties the device."""
    devices = [{"owner": "c", "cached": ["C"]}]
    told = requests((0, "C"), (0, "X"), (0, "C"))
    result = run("exclusive", devices=devices, functions=FOUR, requests=told)
    assert places(result) == [(0, 0, 0.0, "hit"), (1, 0, 1.5, "cold"), (2, 0, 3.25, "cold")]
    assert result.summary.per_client["c"].charged_s == 1 + 1.75


def test_two_functions_of_a_client_never_share_a_worker() -> None:
    functions = {name: {"client": "a", "cold_s": 0.5, "run_s": 1} for name in "AB"}
    devices = [{"owner": {"client": "a", "function": "A"}}]
    result = run("exclusive", devices=devices, functions=functions, requests=requests((0, "A"), (0, "B"), (0, "A")))
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 1.5, "cold"), (2, 0, 3.0, "cold")]


def test_a_busy_device_without_an_owner_starts_a_worker_when_it_is_free() -> None:
    result = run("exclusive", devices=[{"busy_until_s": 4}], functions=FOUR, requests=requests((0, "C")))
    assert places(result) == [(0, 0, 4.5, "cold")]
