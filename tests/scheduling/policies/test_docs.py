"""The policy that docs/policies.md shows works."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.policy_plots import FOLDER, means, over_least
from kaas.errors import PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Dispatch, PolicyFactory
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"


def policy_of_the_page(name: str = "NewestFirst") -> PolicyFactory:
    sources = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (source,) = [source for source in sources if f"class {name}" in source]
    names: dict[str, type] = {}
    exec(source, names)
    return names[name]


def test_the_policy_of_the_documentation_runs() -> None:
    world = World(policy_of_the_page())
    world.tick()
    requests = [world.arrive() for _ in range(3)]
    world.up(0)
    world.cancel(requests[0])
    world.finish(requests[2], 1.0)
    assert world.dispatched == [Dispatch(2, 0, 0), Dispatch(1, 0, 0)]


SCENARIO = {
    "policy": {"name": "cfs_affinity"},
    "devices": [{"cached": ["f"]}, {"busy_until_s": 1}],
    "functions": {"f": {"run_s": 1, "memory_mb": 1}},
    "requests": [{"function": "f"}] * 3,
}


def test_the_policy_of_the_documentation_runs_in_the_simulator() -> None:
    result = simulate(read(SCENARIO), policy_of_the_page())
    assert [(each.request, each.device) for each in result.dispatches] == [(0, 0), (2, 0), (1, 0)]


def test_the_order_of_the_documentation_prefers_the_client_that_runs_fewest() -> None:
    """Two slots: a runs 0 and b 2, then the free slot goes to the client that runs fewest, not to the older request."""
    functions = {"A": {"client": "a", "run_s": 2}, "B": {"client": "b", "run_s": 2}}
    told = {
        "devices": [{"slots": 2, "busy_until_s": 1}],
        "functions": functions,
        "requests": [{"function": name} for name in "AABB"],
    }
    policy = policy_of_the_page("FewestRunning")
    result = simulate(read(told), lambda devices: CheckedPolicy(policy(devices), devices))
    assert [each.request for each in result.dispatches] == [0, 2, 1, 3]


@pytest.mark.parametrize(("weighted", "order"), [(False, [0, 2, 1, 4, 3]), (True, [0, 2, 1, 3, 4])])
def test_the_option_of_the_documentation_counts_weights(*, weighted: bool, order: list[int]) -> None:
    """Four slots: when a, of weight 4, runs two requests and b one, a runs fewer for its weight."""
    told = {
        "devices": [{"slots": 4, "busy_until_s": 1}],
        "clients": {"a": {"weight": 4}, "b": {}},
        "functions": {"A": {"client": "a", "run_s": 2}, "B": {"client": "b", "run_s": 2}},
        "requests": [{"function": name} for name in "AABAB"],
    }
    policy: Any = policy_of_the_page("FewestRunning")
    assert [each.request for each in simulate(read(told), partial(policy, weighted=weighted)).dispatches] == order


class Stubborn:
    """Forgets every request."""

    def __init__(self, devices: object) -> None:
        pass

    def handle(self, _: object) -> list[object]:
        return []


def test_the_simulator_names_the_policy_that_went_wrong() -> None:
    with pytest.raises(PolicyError, match=r"'Stubborn' left requests \[0, 1, 2\] waiting, with nothing") as caught:
        simulate(read(SCENARIO), Stubborn)  # type: ignore[arg-type]
    assert caught.value.policy == "Stubborn"
    with pytest.raises(PolicyError, match="9] waiting, the first 10 of 12, with nothing more to come"):
        simulate(read(SCENARIO | {"requests": [{"function": "f"}] * 12}), Stubborn)  # type: ignore[arg-type]


def test_the_page_shows_the_plot_of_each_policy_that_was_measured() -> None:
    measured = next(iter(means().values()))
    shown = re.findall(r"\(plots/(\w+)\.png\)", PAGE.read_text())
    assert sorted(shown) == sorted(measured)
    assert sorted(path.stem for path in FOLDER.glob("*.png")) == sorted(measured)


def test_a_plot_has_the_mean_latency_over_the_least_of_all_policies() -> None:
    cells = {("w", 0.8): {"fcfs": 6.0, "sjf": 2.0}, ("w", 0.4): {"fcfs": 1.0, "sjf": 1.0}}
    assert over_least("fcfs", cells) == {"w": [(0.4, 1.0), (0.8, 3.0)]}
