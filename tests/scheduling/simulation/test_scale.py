"""Devices that come and go in the simulator, by the same decisions as in a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import DeviceAdded, DeviceRemoved, Event
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation.scenario_file import parse, read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate

RUN_S, START_S, IDLE_S = 1.0, 10.0, 60.0


def ran(at_s: list[float], policy: str = "fcfs", **scale: Any) -> tuple[Simulated, list[tuple[float, int]]]:
    """Return the result for requests at these times, and the number of devices whenever it changed."""
    scenario = {
        "policy": {"name": policy},
        "devices": {"min": 1, "max": 4, "start_s": START_S, "idle_s": IDLE_S, **scale},
        "functions": {"f": {"run_s": RUN_S}},
        "requests": [{"function": "f", "at_s": each} for each in at_s],
    }
    counts: list[tuple[float, int]] = []

    def observe(event: Event, _: Sequence[Decision]) -> None:
        if isinstance(event, DeviceAdded | DeviceRemoved):
            before = counts[-1][1] if counts else 4
            counts.append((event.time_s, before + (1 if isinstance(event, DeviceAdded) else -1)))

    return simulate(read(scenario), observe=observe), counts


def test_devices_come_under_load_after_their_start_and_go_when_idle() -> None:
    done, counts = ran([0.0] * 100 + [300.0])
    there = dict(counts)
    assert there[0.0] == 1
    assert max(there.values()) == 4
    assert counts[-1][1] == 1
    grown = [time_s for time_s, count in counts if time_s and count == 2]
    first = min(each.at_s for each in done.dispatches if each.device)
    assert first == pytest.approx(grown[0] + START_S), "a device takes its time to come"
    assert len(done.dispatches) == 101
    assert not done.rejected


def test_a_short_wait_brings_no_device() -> None:
    _, counts = ran([10.0 * n for n in range(20)])
    assert counts[-1] == (0.0, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_runs_under_every_policy_from_no_device_on(policy: str) -> None:
    done, counts = ran([0.0] * 5 + [500.0], policy, min=0, max=3)
    assert len(done.dispatches) == 6
    assert min(count for _, count in counts[3:]) >= 0


def test_a_scenario_with_a_scale_is_written_as_it_is_read() -> None:
    scale = {"min": 0, "max": 2, "start_s": 3.0, "device": {"slots": 2, "memory_mb": 100.0}}
    scenario = read({"devices": scale})
    assert (scenario.devices[0].slots, len(scenario.devices)) == (2, 2)
    assert parse(scenario.as_json()) == scenario


@pytest.mark.parametrize(
    ("scale", "path"),
    [
        ({"min": 2, "max": 1}, "devices.min"),
        ({"max": 1}, "devices.min"),
        ({"min": 0, "max": 0}, "devices.max"),
        ({"min": -1, "max": 1}, "devices.min"),
        ({"min": 1, "max": 2, "start_s": -1}, "devices.start_s"),
        ({"min": 1, "max": 2, "device": {"slots": 0}}, "devices.device.slots"),
    ],
)
def test_a_scale_that_is_none(scale: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidScenario) as refused:
        read({"devices": scale})
    assert refused.value.fields["path"] == path
