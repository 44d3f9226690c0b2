"""Drives a pool's policy: checks its decisions, measures its time, and records its events if so configured."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kaas.config import Config
from kaas.errors import PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.events import Decision, Event, PhysicalDevice, PolicyFactory
from kaas.scheduling.policies import factory
from kaas.scheduling.recording import Recorder


class PolicyDriver:
    """One policy over these devices.

    Fields:
        seconds: spent in the policy, its checks included. events: number of events that the policy handled.

    Raises:
        PolicyError: the policy cannot be made.
    """

    def __init__(self, config: Config, devices: Sequence[PhysicalDevice]) -> None:
        self._config = config
        self._devices = devices
        self._policy = _make(config.policy, devices)
        self._recorder: Recorder | None = None
        self.seconds = 0.0
        self.events = 0

    def open(self) -> None:
        """Begin the record, if the configuration asks for a record.

        Raises:
            InvalidConfig: the record cannot be written.
        """
        if self._config.record is not None:
            self._recorder = Recorder.open(self._config.record, self._config.policy, self._devices)

    def handle(self, event: Event) -> list[Decision]:
        """Return the policy's decisions on an event.

        Raises:
            Exception: as `CheckedPolicy.handle` and `Recorder.write`.
        """
        began = time.perf_counter()
        try:
            decisions = self._policy.handle(event)
        except PolicyError:
            if self._recorder is not None:
                self._recorder.write(event, (), raised=True)
            raise
        self.seconds += time.perf_counter() - began
        self.events += 1
        if self._recorder is not None:
            self._recorder.write(event, decisions)
        return decisions

    def reset(self) -> None:
        """Set `seconds` and `events` to zero."""
        self.seconds, self.events = 0.0, 0

    def close(self) -> None:
        """Close the record, if there is a record."""
        if self._recorder is not None:
            self._recorder.close()


def _make(chosen: str | PolicyFactory, devices: Sequence[PhysicalDevice]) -> CheckedPolicy:
    name = getattr(chosen, "__name__", str(chosen))
    try:
        policy = factory(chosen)(devices)
    except Exception as error:
        raise PolicyError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}", policy=name) from error
    return CheckedPolicy(policy, devices, name=name)
