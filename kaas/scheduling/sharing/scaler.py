"""Which instances functions get, and where: profiles, loads and promises of latency in; grants out.

A decision is about one function. Instances are added when the load is above their throughput (`scaling`), each where it
leaves the least space (`packing`); where the configuration that suits best has no room, the most efficient one that has
room takes its place. The answer has the instances without a place.

Growing is for the load as it is, at once. Shrinking is for the largest load of the last `hold_s` seconds: a load that
swings within this time changes nothing, and an instance that was just added is not removed. A changed share is the same
instance: it needs no restart, only numbers (`Rescaling.resized`).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing.packing import DevicePacking, Spot
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.scaling import (
    RATE_UNITS,
    Choices,
    Configuration,
    RunningInstance,
    load_units,
    refit,
    rescale,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """An instance: a device and a share of it, for a function.

    Fields:
        number: tells instances apart; none has it again. configuration: the point of the profile that is promised.
            spot: the device and the share there; `spot.sms` and `spot.quota` are what is granted, rounded up.
    """

    function: str
    number: int
    configuration: Configuration
    spot: Spot


@dataclass(frozen=True, slots=True)
class Rescaling:
    """What a decision changes. Nothing, if the tuples are empty.

    Fields:
        resized: instances with another share on the same device, as they were and as they are. missing_per_s: requests
            a second of the load, headroom included, for which there is no room.
    """

    function: str
    added: tuple[Grant, ...] = ()
    removed: tuple[Grant, ...] = ()
    resized: tuple[tuple[Grant, Grant], ...] = ()
    missing_per_s: float = 0.0


MOST_INSTANCES = 1024
"""Of a function, on all devices: a profile of tiny parts asks for more than a pool can look through."""


class HighestLoad:
    """The largest of the loads of the last seconds. hold_s: of how many."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._falling: deque[tuple[float, int]] = deque()  # each smaller than the one before

    def add(self, time_s: float, load: int) -> int:
        """Take in a load and return the largest that counts. A time before the last one counts as the last one."""
        falling = self._falling
        if falling:
            time_s = max(time_s, falling[-1][0])
        while falling and falling[-1][1] <= load:
            falling.pop()
        falling.append((time_s, load))
        while falling[0][0] < time_s - self._hold_s:
            falling.popleft()
        return falling[0][1]


@dataclass(slots=True, eq=False)
class ScaledFunction:
    """A function that the scaler knows.

    Fields:
        running: its instances, the next to go first. grants: the same, by number. rate: their throughput, in units.
            missing: what the last decision found no room for, in units.
    """

    choices: Choices
    highest: HighestLoad
    running: list[RunningInstance] = field(default_factory=list)
    grants: dict[int, Grant] = field(default_factory=dict)
    rate: int = 0
    missing: int = 0

    def add(self, instance: RunningInstance, grant: Grant) -> None:
        """Take in an instance."""
        insort(self.running, instance)
        self.grants[grant.number] = grant
        self.rate += instance.rate

    def remove(self, number: int) -> None:
        """Forget an instance."""
        del self.grants[number]
        (gone,) = (each for each in self.running if each.number == number)
        self.running.remove(gone)
        self.rate -= gone.rate


class Scaler:
    """The instances of all functions on all devices.

    Fields:
        packing: the places of instances, by number. Only the scaler changes those.

    Args:
        devices: their sizes, by index. The profiles are of devices like these.
        hold_s: seconds for which a load that is gone is still provided for.
        headroom: the throughput that is provided, over the load, less one: requests do not come evenly, and wait the
            longer the less is free.

    Raises:
        InvalidConfig: a negative number.
    """

    def __init__(self, devices: Mapping[int, DeviceExtent], *, hold_s: float = 60.0, headroom: float = 0.2) -> None:
        if not (hold_s >= 0 and headroom >= 0):
            raise InvalidConfig(f"hold_s={hold_s}, headroom={headroom}: both are 0 or more")
        self._hold_s, self._headroom = hold_s, headroom
        self.packing = DevicePacking(devices)
        self._functions: dict[str, ScaledFunction] = {}
        self._functions_of: dict[int, str] = {}  # by the number of an instance
        self._numbers = 0

    # --- what there is

    def __contains__(self, function: str) -> bool:
        return function in self._functions

    def add_function(self, function: str, choices: Choices) -> None:
        """Add a function with the configurations that keep its promise, or change them.

        Instances with a configuration that is not among the new ones count for nothing: the next decision replaces
        them.
        """
        state = self._functions.get(function)
        if state is None:
            self._functions[function] = ScaledFunction(choices, HighestLoad(self._hold_s))
            return
        state.choices = choices
        state.running, state.rate = [], 0
        for grant in [*state.grants.values()]:
            promised = choices.points.get(grant.configuration.point)
            if promised is None:
                state.add(RunningInstance(0.0, 0, -grant.number, grant.configuration.area), grant)
            else:
                state.add(RunningInstance.of(grant.number, promised), replace(grant, configuration=promised))

    def remove_function(self, function: str) -> tuple[Grant, ...]:
        """Forget a function, and return the instances that are removed with it.

        Raises:
            KeyError: a function that is not here.
        """
        grants = tuple(self._functions[function].grants.values())
        for grant in grants:
            self._remove(self._functions[function], grant.number)
        del self._functions[function]
        return grants

    def add_device(self, device: int, extent: DeviceExtent) -> None:
        """Add an empty device, by an index that no device here has."""
        self.packing.add_device(device, extent)

    def remove_device(self, device: int) -> tuple[Grant, ...]:
        """Forget a device, and return the instances that are lost with it: their functions need a decision."""
        lost = []
        for number in self.packing.remove_device(device):
            if not isinstance(number, int):
                continue  # of a share that no function has
            state = self._functions[self._functions_of.pop(number)]
            lost.append(state.grants[number])
            state.remove(number)
        return tuple(lost)

    def grants(self, function: str | None = None) -> Iterator[Grant]:
        """Yield the instances of a function, or of all."""
        for state in self._functions.values() if function is None else (self._functions[function],):
            yield from state.grants.values()

    def missing_of(self, function: str) -> float:
        """Return the requests a second of a function for which there was no room at its last decision."""
        return self._functions[function].missing / RATE_UNITS if function in self._functions else 0.0

    def missing_per_s(self) -> dict[str, float]:
        """Return the functions for whose load there was no room at their last decision, and how much of it."""
        return {name: state.missing / RATE_UNITS for name, state in self._functions.items() if state.missing}

    # --- decisions

    def decide(self, function: str, load_per_s: float, time_s: float) -> Rescaling:
        """Fit the instances of a function to its load, and return what changes.

        Args:
            function: its name.
            load_per_s: requests a second, as predicted.
            time_s: now.

        Raises:
            InvalidConfig: a load that is negative, infinite or no number.
            KeyError: a function that is not here.
        """
        state = self._functions[function]
        load = load_units(load_per_s * (1 + self._headroom))
        highest = state.highest.add(time_s, load)
        before = {**state.grants}
        while state.running and state.running[0].rate == 0:
            self._remove(state, state.running[0].number)
        while state.rate < load and self._grow(function, state, load):
            pass
        if state.rate >= highest:
            self._shrink(state, highest)
        state.missing = max(0, load - state.rate)
        return _difference(function, before, state.grants, state.missing / RATE_UNITS)

    def _grow(self, function: str, state: ScaledFunction, load: int) -> bool:
        """Change the least efficient instance or add some. Return False if there is no room for anything."""
        grown = self._refit(state, load)
        for configuration, count in rescale(state.choices, load, state.running).add:
            for _ in range(count):
                if not self._add(function, state, configuration):
                    return self._add_another(function, state) or grown
        return True

    def _shrink(self, state: ScaledFunction, load: int) -> None:
        while True:
            for number in rescale(state.choices, load, state.running).remove:
                self._remove(state, number)
            if not self._refit(state, load):
                break

    def _refit(self, state: ScaledFunction, load: int) -> bool:
        """Change the share of the least efficient instance, if another suits it better and has room."""
        better = refit(state.choices, load, state.running)
        if better is None:
            return False
        number, configuration = better
        spot = self.packing.resize(number, configuration.sms, configuration.quota)
        if spot is None:
            return False
        grant = Grant(state.grants[number].function, number, configuration, spot)
        state.remove(number)
        state.add(RunningInstance.of(number, configuration), grant)
        return True

    def _add(self, function: str, state: ScaledFunction, configuration: Configuration) -> bool:
        """Add an instance, and return whether there is room for it."""
        if len(state.grants) >= MOST_INSTANCES:
            return False
        spot = self.packing.place(self._numbers, configuration.sms, configuration.quota)
        if spot is None:
            return False
        grant = Grant(function, self._numbers, configuration, spot)
        state.add(RunningInstance.of(grant.number, configuration), grant)
        self._functions_of[grant.number] = function
        self._numbers += 1
        return True

    def _add_another(self, function: str, state: ScaledFunction) -> bool:
        """Add an instance of the most efficient configuration that has room."""
        too_large: list[Configuration] = []
        for each in state.choices.by_efficiency:
            if not any(each.sms >= other.sms and each.quota >= other.quota for other in too_large):
                if self._add(function, state, each):
                    return True
                too_large.append(each)
        return False

    def _remove(self, state: ScaledFunction, number: int) -> None:
        state.remove(number)
        self.packing.release(number)
        del self._functions_of[number]


def _difference(function: str, before: dict[int, Grant], now: dict[int, Grant], missing_per_s: float) -> Rescaling:
    return Rescaling(
        function,
        tuple(grant for number, grant in now.items() if number not in before),
        tuple(grant for number, grant in before.items() if number not in now),
        tuple((before[number], grant) for number, grant in now.items() if before.get(number, grant) is not grant),
        missing_per_s,
    )
