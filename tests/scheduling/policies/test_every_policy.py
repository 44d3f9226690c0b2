"""Guarantees of every policy: each request ends once, and no rule of `CheckedPolicy` is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import PolicyFactory
from kaas.scheduling.events import ObjectUse
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.static import Static
from tests.scheduling.policies.world import ETASK, EXECUTOR, World

FACTORIES: dict[str, PolicyFactory] = {
    **POLICIES,
    "cfs_affinity, last": partial(CfsAffinity, affinity="last"),
    "static, shares": partial(Static, shares={"a": 1}),
}
CLIENTS = "abc"


class Chaos:
    """Draws the next events."""

    def __init__(self, world: World, draw: Callable[[int], int]) -> None:
        self.world, self.draw = world, draw

    def pick(self, among: set[int]) -> int | None:
        return sorted(among)[self.draw(len(among))] if among else None

    def arrive(self) -> None:
        world = self.world
        inputs = tuple(ObjectUse(bytes([self.draw(4)]), 1 + self.draw(3)) for _ in range(self.draw(3)))
        world.arrive(
            CLIENTS[self.draw(3)],
            "fg"[self.draw(2)],
            ETASK if self.draw(3) == 0 else EXECUTOR,
            ready=self.draw(3) > 0,
            alone=self.draw(6) == 5,
            inputs=inputs,
        )

    def time_passes(self) -> None:
        self.world.time_s += self.draw(3)
        self.world.step(self.draw, self.draw(4) / 2)

    def cancel(self) -> None:
        world = self.world
        if (request := self.pick((world.waiting | world.queued | set(world.running)) - world.left)) is not None:
            world.cancel(request)

    def die(self) -> None:
        world = self.world
        if (worker := self.pick(set(world.workers))) is not None:
            world.gone(worker, again=self.draw(3), alone=self.draw(2) == 1)

    def fail_to_start(self) -> None:
        if (worker := self.pick(set(self.world.starting) - self.world.stopping)) is not None:
            self.world.gone(worker, "no driver")

    def settings(self) -> None:
        limits = (None, 1, 2)
        self.world.known(
            CLIENTS[self.draw(3)],
            weight=1.0 + self.draw(3),
            priority=self.draw(2),
            max_running=limits[self.draw(3)],
            max_share=(None, 0.25, 1.0)[self.draw(3)],
        )

    def residency(self) -> None:
        world = self.world
        ready = {number for number, worker in world.workers.items() if worker.kind is EXECUTOR}
        if (worker := self.pick(ready)) is not None:
            world.resident(worker, (bytes([self.draw(4)]),), (bytes([self.draw(4)]),))


@pytest.mark.parametrize("name", FACTORIES)
@given(data=st.data(), devices=st.integers(1, 5), slots=st.integers(1, 3), etask_workers=st.integers(1, 3))
def test_every_request_is_answered_once(
    name: str, data: st.DataObject, devices: int, slots: int, etask_workers: int
) -> None:
    def draw(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    world = World(FACTORIES[name], devices, slots, etask_workers)
    world.tick()
    chaos = Chaos(world, draw)
    usual = [chaos.arrive, chaos.arrive, chaos.time_passes, chaos.time_passes]
    rare = [chaos.cancel, chaos.die, chaos.fail_to_start, chaos.settings, chaos.residency]
    for action in data.draw(st.lists(st.sampled_from(usual + rare), min_size=10, max_size=60)):
        action()
    world.settle(draw)
