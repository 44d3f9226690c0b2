"""The memory of shares: beyond its bytes a share's own objects leave a device, and no others."""

from __future__ import annotations

import pytest

from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate


def run(policy: str, memory_mb: float | None, **more: object) -> Simulated:
    """Let a client call a and b in turns, and another one c, on a device with room for all."""
    functions = {
        name: {"memory_mb": 100, "load_s": 0.5, "cold_s": 0.5, "run_s": 0.1, "client": client}
        for name, client in (("a", "small"), ("b", "small"), ("c", "large"))
    }
    share = {"memory_mb": memory_mb}
    calls = [{"at_s": 3.0 * number, "function": "abc"[number % 3]} for number in range(18)]
    return simulate(
        read(
            {
                "policy": {"name": policy},
                "devices": [{"memory_mb": 1000, "host_mb": 1000}],
                "functions": functions,
                "clients": {"small": {"share": share}},
                "requests": calls,
                **more,
            }
        )
    )


def loads(result: Simulated) -> list[str]:
    return ["abc"[each.request % 3] for each in result.dispatches if each.start != "hit"]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("exclusive", "static")])
def test_beyond_its_bytes_the_object_used_longest_ago_leaves_and_others_stay(policy: str) -> None:
    assert sorted(loads(run(policy, None))) == ["a", "b", "c"], "there is room"
    assert sorted(loads(run(policy, 200.0))) == ["a", "b", "c"]
    assert sorted(loads(run(policy, 150.0))) == ["a"] * 6 + ["b"] * 6 + ["c"]
    assert sorted(loads(run(policy, 0.0))) == ["a"] * 6 + ["b"] * 6 + ["c"]
