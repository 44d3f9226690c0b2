"""batch, sjf and edf, as scenarios calculated by hand."""

from __future__ import annotations

from typing import Any

from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

Told = dict[str, Any]
BUSY = [{"busy_until_s": 1}]


def order(policy: str, **told: Any) -> str:
    """Return the dispatched requests, in order, as one text."""
    result = simulate(read({"policy": {"name": policy}, "devices": BUSY, **told}))
    return " ".join(str(each.request) for each in result.dispatches)


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


# --- batch


def test_a_batch_is_all_that_waits_of_the_oldest_requests_function() -> None:
    told = requests((0, "A"), (0, "B"), (0, "A"), (0, "B"), (0, "A"))
    assert order("batch", functions={"A": {"run_s": 1}, "B": {"run_s": 1}}, requests=told) == "0 2 4 1 3"


def test_what_arrives_during_a_batch_belongs_to_a_later_one() -> None:
    """Request 3, for A, comes while A's batch runs: B's goes first."""
    told = requests((0, "A"), (0, "B"), (0, "A"), (1.5, "A"))
    assert order("batch", functions={"A": {"run_s": 1}, "B": {"run_s": 1}}, requests=told) == "0 2 1 3"


def test_each_client_has_batches_of_its_own() -> None:
    told = [{"function": "A", "client": client} for client in ("x", "y", "x", "y")]
    assert order("batch", functions={"A": {"run_s": 1}}, requests=told) == "0 2 1 3"


def test_two_devices_run_two_batches_and_the_one_that_is_done_helps() -> None:
    devices = [{"busy_until_s": 1}, {"busy_until_s": 1}]
    told = requests(*[(0, "A")] * 4, (0, "B"))
    result = simulate(
        read(
            {
                "policy": {"name": "batch"},
                "devices": devices,
                "functions": {"A": {"run_s": 1}, "B": {"run_s": 1}},
                "requests": told,
            }
        )
    )
    assert [(each.request, each.at_s) for each in result.dispatches] == [(0, 1), (4, 1), (1, 2), (2, 2), (3, 3)]
    devices_of = {each.request: each.device for each in result.dispatches}
    assert devices_of[0] == devices_of[1] == devices_of[3] != devices_of[4]


# --- sjf


def test_the_function_with_the_shortest_runs_goes_first_and_ties_go_to_the_oldest() -> None:
    functions = {"L": {"run_s": 3}, "S": {"run_s": 1}, "T": {"run_s": 1}}
    assert order("sjf", functions=functions, requests=requests((0, "L"), (0, "T"), (0, "S"), (0, "T"))) == "1 2 3 0"


def test_run_times_are_learned() -> None:
    """Without profiles the first ones go by age; then S, measured at 1, goes before L, measured at 3."""
    functions = {"L": {"run_s": 3}, "S": {"run_s": 1}}
    told = requests((0, "L"), (0, "S"), (0, "L"), (0, "S"), (0, "S"))
    assert order("sjf", functions=functions, requests=told, profiles=False) == "0 1 3 4 2"


def test_an_unknown_function_has_the_time_that_its_family_has_for_its_batch() -> None:
    """Batches of 1 and 4 take 1 and 4 s; so the new batch of 2 goes before the one of 4."""
    functions = {f"b{n}": {"run_s": n, "family": "f", "batch": n} for n in (1, 4)}
    told = requests((0, "b4"), (0, "b1"), (0, "b4"))
    assert order("sjf", functions=functions, requests=told) == "1 0 2"


# --- edf


def test_the_least_deadline_goes_first_and_those_without_one_last() -> None:
    told = [
        {"function": "A"},
        {"function": "A", "deadline_s": 9},
        {"function": "A", "deadline_s": 6},
        {"function": "A"},
        {"function": "A", "deadline_s": 6},
    ]
    assert order("edf", functions={"A": {"run_s": 1}}, requests=told) == "2 4 1 0 3"
