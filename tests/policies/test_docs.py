"""The policy that docs/policies.md shows is one."""

from __future__ import annotations

import re
from pathlib import Path

from kaas.pool.events import Dispatch
from tests.policies.world import World

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_the_policy_of_the_documentation_runs() -> None:
    *_, source = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, type] = {}
    exec(source, names)
    world = World(names["OneAtATime"])
    world.tick()
    requests = [world.arrive() for _ in range(3)]
    world.up(0)
    world.cancel(requests[0])
    world.finish(requests[2], 1.0)
    assert world.dispatched == [Dispatch(2, 0, 0), Dispatch(1, 0, 0)]
