"""A client that waits for each reply before its next request shares a pool with one that always has more requests: the
first waits for the running request, and never for another one of the same client."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial

import pytest

from kaas.scheduling.decisions import Dispatch, StartWorker
from kaas.scheduling.events import (
    Event,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Tick,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES

FAIR = [name for name, policy in POLICIES.items() if getattr(policy, "fair", False)]
assert FAIR, "or no policy is tested below"
MEMORY_BYTES = 1 << 30
LONG_S, SHORT_S = 0.1, 0.005
JITTER = 0.05
"""No two requests take the same time: an estimate is too high as often as too low."""


class Loop:
    """One device under a policy, in virtual time: "greedy" has four long requests open, "modest" has one short one."""

    def __init__(self, policy: str, think_s: float) -> None:
        self._policy = POLICIES[policy]((PhysicalDevice(0, "software", MEMORY_BYTES),))
        self._think_s = think_s
        self._random = random.Random(0)
        self._now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._requests: list[tuple[str, float]] = []
        self.waits_s: list[float] = []

    def run(self, until_s: float) -> None:
        self._handle(Tick(0.0))
        for client in ("greedy", "greedy", "greedy", "greedy", "modest"):
            self._send(client)
        while self._due[0][0] < until_s:
            self._now_s, _, act = heapq.heappop(self._due)
            act()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._now_s + seconds, len(self._due) + len(self._requests), act))

    def _send(self, client: str) -> None:
        self._requests.append((client, self._now_s))
        self._handle(RequestArrived(self._now_s, len(self._requests) - 1, client, f"function of {client}"))

    def _handle(self, event: Event) -> None:
        for decision in self._policy.handle(event):
            match decision:
                case StartWorker(worker=worker, kind=kind, device=device):
                    self._after(
                        0.0, lambda: self._handle(WorkerReady(self._now_s, worker, kind, device, 1, MEMORY_BYTES))
                    )
                case Dispatch():
                    self._begin(decision)
                case _:
                    raise AssertionError(f"nothing else is expected here: {decision}")

    def _begin(self, decision: Dispatch) -> None:
        client, sent_s = self._requests[decision.request]
        if client == "modest":
            self.waits_s.append(self._now_s - sent_s)
        took_s = (LONG_S if client == "greedy" else SHORT_S) * self._random.uniform(1 - JITTER, 1 + JITTER)
        self._after(took_s, partial(self._end, decision, client, took_s))

    def _end(self, decision: Dispatch, client: str, took_s: float) -> None:
        request, worker, slot = decision.request, decision.worker, decision.slot
        self._handle(RequestDone(self._now_s, request, worker, slot, Outcome.SUCCEEDED, took_s))
        self._after(0.0 if client == "greedy" else self._think_s, partial(self._send, client))


@pytest.mark.parametrize("think_s", [0.0, 0.001, 0.02, 0.5])
@pytest.mark.parametrize("policy", FAIR)
def test_a_client_waits_for_one_request_of_the_other_at_most(policy: str, think_s: float) -> None:
    loop = Loop(policy, think_s)
    loop.run(60.0)
    assert len(loop.waits_s) > 90
    assert max(loop.waits_s[5:]) <= LONG_S * (1 + JITTER)  # at first nothing is known of either
