"""Runs scenarios, and policies that decide more than first come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import Event, WorkerReady
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate

Told = dict[str, Any]


def run(**told: Any) -> Simulated:
    return simulate(read(told))


def places(result: Simulated) -> list[tuple[int, int, float, str]]:
    return [(each.request, each.device, each.at_s, each.start) for each in result.dispatches]


def evicted(result: Simulated) -> list[tuple[str, ...]]:
    return [each.evicted for each in result.dispatches]


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


class Scripted(FirstComeFirstServed):
    """First come, first served, with more decisions at the first worker."""

    work_conserving: ClassVar[bool] = False
    more: ClassVar[Sequence[Decision]] = ()

    def handle(self, event: Event) -> list[Decision]:
        decided = super().handle(event)
        return [*decided, *self.more] if isinstance(event, WorkerReady) and event.worker == 0 else decided


def script(*decisions: Decision) -> type[Scripted]:
    return type("Script", (Scripted,), {"more": decisions})


class Listener(Scripted):
    """A script that keeps the events it hears."""

    heard: ClassVar[list[Event]]

    def handle(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        return super().handle(event)


def heard(scenario: Scenario, *decisions: Decision, **attributes: Any) -> list[Event]:
    """Return the events of a scenario under a script."""
    events: list[Event] = []
    simulate(scenario, type("Heard", (Listener,), {"more": decisions, "heard": events, **attributes}))
    return events
