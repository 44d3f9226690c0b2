"""A policy for tests that end workers: it runs retries alone, and tells the events of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from kaas.scheduling.decisions import Decision, Dispatch, StartWorker
from kaas.scheduling.events import (
    Event,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Tick,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from tests.pool.fake_workers import TWO_SLOTS, FakeWorkers, play


class Careful:
    """Fills one worker after the other, runs retries alone, and keeps the events of requests."""

    heard: ClassVar[list[Any]] = []

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.device = devices[0].index
        self.worker = -1
        self.free: list[int] = []
        self.waiting: list[RequestArrived] = []
        self.running: dict[int, bool] = {}

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case Tick() | WorkerGone():
                self.worker += 1
                self.free.clear()
                self.running.clear()
                return [StartWorker(self.worker, WorkerKind.EXECUTOR, self.device)]
            case WorkerReady():
                self.free = list(range(event.slots))
            case RequestArrived():
                self.heard.append((event.request, event.attempt, event.alone))
                self.waiting.append(event)
            case RequestCancelled():
                self.heard.append(("cancelled", event.request))
                self.waiting = [waiting for waiting in self.waiting if waiting.request != event.request]
            case RequestDone():
                del self.running[event.request]
                self.free.append(event.slot)
        return self._dispatch()

    def _dispatch(self) -> list[Decision]:
        decisions: list[Decision] = []
        while self.waiting and self.free and not any(self.running.values()):
            if self.waiting[0].alone and self.running:
                break
            first = self.waiting.pop(0)
            self.running[first.request] = first.alone
            decisions.append(Dispatch(first.request, self.worker, self.free.pop(0)))
        return decisions


def careful(scenario: Any, **config: Any) -> None:
    """Play a scenario with one worker of two slots."""
    Careful.heard.clear()
    play(scenario, workers=FakeWorkers(TWO_SLOTS), policy=Careful, **config)
