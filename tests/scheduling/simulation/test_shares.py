"""Shares in the simulator: the same turns as in a pool, and runs that take longer on fewer SMs than they fill."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.scenario_file import parse, read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate

RUN_S, UNTIL_S = 0.01, 10.0
LEVELS = (0.06, 0.12, 0.24, 0.5, 0.6, 0.8, 1.0)
"""FaST-GShare's points of a profile (Figure 8)."""


def scenario(
    functions: dict[str, dict[str, Any]], policy: str = "fcfs", seconds: float = UNTIL_S, **device: Any
) -> Scenario:
    """Return a scenario in which each function has more requests than a device runs in so many seconds."""
    return read(
        {
            "policy": {"name": policy},
            "devices": [{"sms": 80, "sm_step": 2, "slots": 8, **device}],
            "functions": {name: {"run_s": RUN_S, "client": name, **each} for name, each in functions.items()},
            "requests": [
                {"function": name, "deadline_s": seconds} for _ in range(round(200 * seconds)) for name in functions
            ],
        }
    )


def rates(done: Simulated) -> dict[str, float]:
    """Return the requests a second that each client was charged for, if each took `RUN_S`."""
    return {name: each.charged_s / RUN_S / UNTIL_S for name, each in done.summary.per_client.items()}


def rate(share: dict[str, Any], fills: float) -> float:
    """Return the requests a second that end in time of a function alone."""
    done = simulate(scenario({"f": {"share": share, "fills": fills}}))
    return (2000 - done.summary.rejected) / UNTIL_S


@pytest.mark.parametrize("policy", ["fcfs", "mqfq_sticky", "adaptive"])
def test_two_functions_divide_the_time_as_promised(policy: str) -> None:
    functions = {"f": {"share": {"quota": [0.1, 1]}}, "g": {"share": {"quota": [0.9, 1]}}}
    done = rates(simulate(scenario(functions, policy)))
    assert (done["f"], done["g"]) == pytest.approx((10, 90), rel=0.05)


@pytest.mark.parametrize(("short_s", "long_s"), [(0.003, 0.3), (0.01, 0.25), (0.3, 0.005), (0.003, 1.0)])
def test_runs_of_other_lengths_take_no_share_its_part_of_the_time(short_s: float, long_s: float) -> None:
    functions = {
        "f": {"run_s": short_s, "share": {"quota": [0.1, 1]}},
        "g": {"run_s": long_s, "share": {"quota": [0.9, 1]}},
    }
    done = simulate(scenario(functions, seconds=60.0)).summary.per_share
    assert [each.device_s / 60.0 for each in done.values()] == pytest.approx([0.1, 0.9], rel=0.03)


@pytest.mark.parametrize("policy", [{"name": "mqfq_sticky", "D": 1}, {"name": "adaptive"}])
@pytest.mark.parametrize("client", [None, "c"])
def test_two_flows_whose_shares_fit_run_beside_each_other(policy: dict[str, Any], client: str | None) -> None:
    halves = {name: {"fills": 0.5, "share": {"sms": 0.5}} for name in "fg"}
    asked = msgspec.json.decode(scenario(halves).as_json()) | {"policy": policy}
    if client is not None:
        asked["functions"] = {name: each | {"client": client} for name, each in asked["functions"].items()}
    done = simulate(read(asked)).summary
    assert sum(each.charged_s for each in done.per_client.values()) == pytest.approx(2 * UNTIL_S, rel=0.01)
    for each in done.per_share.values():
        assert (each.device_s, each.sm_s, each.missed) == pytest.approx((UNTIL_S, UNTIL_S / 2, 0), rel=0.01)


def test_a_summary_says_which_shares_have_missed_their_least() -> None:
    functions = {name: {"share": {"quota": [0.9, 1]}} for name in "fg"}
    done = simulate(scenario(functions)).summary.per_share
    assert min(each.missed for each in done.values()) > 80, "together they are beyond the device"
    alone = simulate(scenario({"f": functions["f"], "g": {}})).summary.per_share
    assert alone["function f"].missed == 0


def test_four_quarters_at_once_are_four_times_a_quarter_of_the_time_each() -> None:
    quarters = {name: {"fills": 0.25, "share": {"sms": 0.25}} for name in "fghi"}
    in_turns = {name: {"fills": 0.25, "share": {"quota": [0.25, 1]}} for name in "fghi"}
    beside, after = (sum(rates(simulate(scenario(each))).values()) for each in (quarters, in_turns))
    assert beside / after == pytest.approx(4, rel=0.02)


def test_throughput_saturates_over_sms_and_is_a_line_over_time() -> None:
    """The shape of the paper's Figure 8, for a function that fills 24 % of the SMs, as ResNet there."""
    over_sms = [rate({"sms": sms}, 0.24) for sms in LEVELS]
    assert over_sms == pytest.approx([31, 52, 100, 100, 100, 100, 100], rel=0.03), "6, 10 and 20 of 80 SMs, and more"
    over_time = [rate({"sms": 0.24, "quota": [0, quota]}, 0.24) for quota in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert over_time == pytest.approx([20, 40, 60, 80, 100], rel=0.05)


def test_a_clients_share_holds_for_functions_without_one() -> None:
    asked = scenario({"f": {}, "g": {"client": "c"}, "h": {"client": "c", "share": {"quota": [0.2, 0.2]}}})
    asked = read({**msgspec.json.decode(asked.as_json()), "clients": {"c": {"share": {"quota": [0.5, 0.5]}}}})
    done = simulate(asked).summary.per_client
    assert done["c"].charged_s == pytest.approx(7.0, rel=0.05)


def test_a_scenario_with_shares_is_read_as_it_was_written() -> None:
    asked = scenario({"f": {"share": {"sms": 0.24, "quota": [0.3, 0.8]}, "fills": 0.5}})
    assert parse(asked.as_json()) == asked


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"functions": {"f": {"share": {"sms": 0}}}}, "functions.f.share.sms"),
        ({"functions": {"f": {"share": {"quota": [0.5, 0.4]}}}}, "functions.f.share.quota"),
        ({"functions": {"f": {"share": {"quota": [0, 0]}}}}, "functions.f.share.quota"),
        ({"functions": {"f": {"fills": 1.5}}}, "functions.f.fills"),
        ({"clients": {"c": {"share": {"time": 1}}}}, "clients.c.share.time"),
        ({"devices": [{"sms": 8, "sm_step": 16}]}, "devices[0].sm_step"),
        ({"window_s": 0}, "window_s"),
    ],
)
def test_wrong_shares_are_named(wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidScenario) as refused:
        read(wrong)
    assert refused.value.path == path


@pytest.mark.parametrize(("fills", "expected"), [(1.0, 100), (0.5, 200), (0.25, 400), (0.125, 800), (0.05, 800)])
def test_requests_without_a_share_run_at_a_time_only_as_far_as_there_are_sms(fills: float, expected: float) -> None:
    done = simulate(scenario({name: {"fills": fills} for name in "fghi"})).summary
    assert (8000 - done.rejected) / UNTIL_S == pytest.approx(expected, rel=0.03)


def test_requests_without_a_share_have_the_sms_that_a_share_leaves() -> None:
    done = simulate(
        scenario({"f": {"fills": 0.75, "share": {"sms": 0.75, "quota": [1, 1]}}, "g": {"fills": 0.25}})
    ).summary
    assert (4000 - done.rejected) / UNTIL_S == pytest.approx(200, rel=0.03)
