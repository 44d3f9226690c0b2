"""How many devices a pool has: the load of the last time in, devices that come and go out.

The scaler hears the events and decisions of a policy, and answers with `DeviceAdded` and `DeviceRemoved` for it. The
pool and the simulator both drive it: they ask `decide` at `wake_s`, and hand its events to the policy.

**More devices** come when a request has waited for longer than a device takes to start, by the starts that were
measured: a shorter wait is over before the device is there. As many come at a time as there are, but no more than the
waiting requests fill. Requests that limits hold back do not count. Before still more come, these have the time of a
start, too. Where no device is there, the first request brings one at once.

**Fewer devices** stay when `idle_s` have passed in which so many were never busy at a time, and none came. What counts
is the largest number of busy slots in that time, so that a load which swings within it changes nothing. The devices
that go are those that are used least now.

**Promises of latency** (`Granted`): a load for which there is no room brings one device at a time. Devices with
instances stay.

**A device that does not start** is given up, and comes into question again `RETRY_S` later; another one may take its
place at once.

The objects on a device do not decide: whether a warm cache is worth its device depends on the price of both, which
nothing measures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from kaas.scheduling.decisions import Decision, Dispatch, Granted, Reject, StartWorker, StopWorker
from kaas.scheduling.events import (
    DeviceAdded,
    DeviceRemoved,
    Event,
    InputsReady,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    ShareGone,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)

START_S = 1.0
"""Seconds that a device is expected to take to start before one has."""
RETRY_S = 10.0
"""A device that did not start comes into question again so much later."""
SHORTEST_S = 0.1
"""A start is expected to take no less, so that the scaler seldom looks."""


@dataclass(slots=True, eq=False)
class _DeviceWorker:
    """A worker as the scaler sees it. began_s: the time of its StartWorker, while it starts."""

    device: int
    kind: WorkerKind
    began_s: float | None = None
    stopping: bool = False

    @property
    def coming(self) -> bool:
        return self.began_s is not None and not self.stopping


class DeviceScaler:
    """Decides how many devices there are. All are there until `begin`.

    Args:
        least, most: how many. idle_s: as in `kaas.Scale`.
        holds: whether limits of its client hold a waiting request back, so that no device helps it.

    Fields:
        present: the devices that are there. wake_s: the time at which `decide` is to be called; infinite for never.
        start_s: seconds that a device takes to start, by the last starts.
    """

    def __init__(
        self,
        least: int,
        most: int,
        *,
        idle_s: float,
        holds: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._least = least
        self._most = most
        self._idle_s = idle_s
        self._holds = holds
        self._granted: dict[str, Granted] = {}  # the instances of functions with promises of latency
        self.present = set(range(most))
        self.wake_s = math.inf
        self.start_s = START_S
        self._measured = False
        self._slots = 1
        self._waiting: dict[int, float] = {}  # requests whose inputs exist, with the time since when
        self._runs: dict[int, tuple[int, int]] = {}  # the worker of each running request, and the slots that it takes
        self._workers: dict[int, _DeviceWorker] = {}
        self._on: dict[int, dict[int, _DeviceWorker]] = {device: {} for device in range(most)}
        self._used_s = dict.fromkeys(range(most), -math.inf)  # the last dispatch to each device
        self._retry_s: dict[int, float] = {}
        self._busy = 0  # slots
        self._peaks: deque[tuple[float, int]] = deque()  # falling numbers of busy slots, and when each was last reached
        self._refused = False  # a request was refused, and no device was there since
        self._came_s = -math.inf  # the last time at which a device was asked for, or came

    def begin(self, kept: Container[int], now_s: float) -> list[DeviceRemoved]:
        """Return the events of the devices that are not there at the start. kept: those with workers already."""
        gone = [device for device in range(self._least, self._most) if device not in kept]
        self._came_s = now_s
        return [DeviceRemoved(now_s, device) for device in gone]

    # --- what happens

    def observe(self, event: Event, decisions: Iterable[Decision]) -> None:
        """Take in an event of the policy, and what it has decided."""
        now_s = event.time_s
        match event:
            case RequestArrived():
                if event.ready:
                    self._wait(event.request, now_s)
            case InputsReady():
                self._wait(event.request, now_s)
            case RequestCancelled():
                self._waiting.pop(event.request, None)
            case RequestDone():
                self._ended(event.request, now_s)
            case WorkerReady():
                self._ready(event)
            case WorkerAdopted():
                self._workers[event.worker] = self._on[event.device][event.worker] = _DeviceWorker(
                    event.device, event.kind
                )
                self._sized(event.kind, event.slots)
                for running in event.running:
                    self._run(running.request, event.worker, now_s)
            case WorkerGone():
                self._gone(event)
            case ShareGone():
                self._granted.pop(event.share, None)
            case DeviceAdded():
                self.present.add(event.device)
                self._came_s = now_s
            case DeviceRemoved():
                self.present.discard(event.device)
                self._look_at(now_s)
        for decision in decisions:
            match decision:
                case Dispatch():
                    self._waiting.pop(decision.request, None)
                    self._run(decision.request, decision.worker, now_s)
                case Reject():
                    self._waiting.pop(decision.request, None)
                    self._refused = True
                    self._look_at(now_s)
                case StartWorker():
                    worker = _DeviceWorker(decision.device, decision.kind, now_s)
                    self._workers[decision.worker] = self._on[decision.device][decision.worker] = worker
                case Granted():
                    self._granted[decision.share] = decision
                    self._look_at(now_s)
                case StopWorker():
                    self._workers[decision.worker].stopping = True

    def _look_at(self, time_s: float) -> None:
        self.wake_s = min(self.wake_s, time_s)

    def _wait(self, request: int, now_s: float) -> None:
        self._waiting[request] = now_s
        if len(self.present) < self._most:
            self._look_at(now_s + self.start_s if self.present else now_s)

    def _run(self, request: int, number: int, now_s: float) -> None:
        worker = self._workers[number]
        slots = 1 if worker.kind is WorkerKind.EXECUTOR else self._slots
        self._runs[request] = number, slots
        self._used_s[worker.device] = now_s
        self._busy += slots

    def _ended(self, request: int, now_s: float) -> None:
        _, slots = self._runs.pop(request)
        while self._peaks and self._peaks[-1][1] <= self._busy:
            self._peaks.pop()
        self._peaks.append((now_s, self._busy))
        self._busy -= slots
        if len(self.present) > self._least:
            self._look_at(now_s + self._idle_s)

    def _sized(self, kind: WorkerKind, slots: int) -> None:
        if kind is WorkerKind.EXECUTOR:
            self._slots = max(self._slots, slots)

    def _ready(self, event: WorkerReady) -> None:
        worker = self._workers[event.worker]
        self._sized(event.kind, event.slots)
        if worker.began_s is not None and event.kind is WorkerKind.EXECUTOR:
            start_s = event.time_s - worker.began_s
            self.start_s = max(SHORTEST_S, (self.start_s + start_s) / 2 if self._measured else start_s)
            self._measured = True
        worker.began_s = None
        self._came_s = event.time_s
        if self._waiting:
            self._look_at(event.time_s + self.start_s)
        if len(self.present) > self._least:
            self._look_at(event.time_s + self._idle_s)

    def _gone(self, event: WorkerGone) -> None:
        worker = self._workers.pop(event.worker)
        del self._on[worker.device][event.worker]
        for request in [each for each, (number, _) in self._runs.items() if number == event.worker]:
            self._ended(request, event.time_s)
        alone = all(other.began_s is not None for other in self._on[worker.device].values())
        failed = worker.coming and alone and worker.kind is WorkerKind.EXECUTOR
        if failed and worker.device in self.present:
            self._retry_s[worker.device] = event.time_s + RETRY_S
            self._look_at(event.time_s)

    # --- what follows

    def decide(self, now_s: float) -> list[DeviceAdded | DeviceRemoved]:
        """Return the devices that come or go now, as events for the policy; set `wake_s`."""
        self.wake_s = math.inf
        failed = sorted(device for device in self.present if self._retry_s.get(device, 0.0) > now_s)
        given_up = [DeviceRemoved(now_s, device) for device in failed]
        there = len(self.present) - len(failed)
        wanted = max(self._least, self._wanted(there, now_s))
        if wanted < there:
            return [*given_up, *(DeviceRemoved(now_s, device) for device in self._unused(there - wanted, failed))]
        able = [device for device in range(self._most) if device not in self.present]
        coming = [device for device in able if self._retry_s.get(device, 0.0) <= now_s]
        coming.sort(key=lambda device: (len(self._on[device]), device))  # those whose workers still end come last
        if wanted - there > len(coming):
            self._look_at(min((self._retry_s[each] for each in {*able, *failed} - {*coming}), default=math.inf))
        return [*given_up, *(DeviceAdded(now_s, device) for device in coming[: wanted - there])]

    def _wanted(self, there: int, now_s: float) -> int:
        """Return the number of devices for the load, of which so many are there; ask for the next look."""
        self._refused = self._refused and not there
        lacking = self._refused or any(each.missing_per_s > 0 for each in self._granted.values())
        waits = next((since_s for each, since_s in self._waiting.items() if not self._holds(each)), None)
        if waits is not None or lacking:
            if there == self._most:
                return there
            due_s = max(self._came_s, -math.inf if waits is None else waits) + self.start_s
            if there and now_s < due_s:
                self._look_at(due_s)
                return there
            self._look_at(now_s + self.start_s)
            full = -(-(self._busy + len(self._waiting)) // self._slots)
            if full <= there and any(worker.coming for worker in self._workers.values()):
                return there
            return max(there + 1, min(2 * there, full, self._most))
        if self._waiting:
            self._look_at(now_s + self.start_s)
        return self._kept(there, now_s)

    def _kept(self, there: int, now_s: float) -> int:
        """Return how many of the devices stay."""
        while self._peaks and self._peaks[0][0] + self._idle_s <= now_s:
            self._peaks.popleft()
        peak = max(self._busy, self._peaks[0][1] if self._peaks else 0)
        if there <= self._least:
            return there
        if now_s < self._came_s + self._idle_s:
            self._look_at(self._came_s + self._idle_s)
            return there
        if self._peaks and peak > self._busy:
            self._look_at(self._peaks[0][0] + self._idle_s)
        return min(there, max(-(-peak // self._slots), len(self._promised())))

    def _promised(self) -> set[int]:
        """Return the devices with instances of functions that have promises of latency."""
        return {place.device for granted in self._granted.values() for place in granted.instances}

    def _unused(self, count: int, failed: Container[int]) -> list[int]:
        """Return the devices that go: without instances, or a worker, with the fewest runs, then used longest ago."""
        promised = self._promised()
        runs = dict.fromkeys(self.present, 0)
        for number, slots in self._runs.values():
            device = self._workers[number].device
            runs[device] = runs.get(device, 0) + slots
        able = [device for device in self.present if device not in failed]
        able.sort(key=lambda each: (each in promised, bool(self._on[each]), runs[each], self._used_s[each], -each))
        return able[:count]
