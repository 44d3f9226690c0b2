"""The run time, load time, memory and arrivals of each function, learned from what ended and from what is told.

A mean is that of the first 20 values, then it moves by a twentieth of each difference. Failed runs do not count. Times
are kept for a device of speed 1, by the kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from kaas.scheduling.events import FunctionKnown, Outcome, PhysicalDevice, RequestDone
from kaas.scheduling.policies.state import QueuedRequest

MEASURED = 20
"""Values that count alike in a mean."""
SHORTEST_GAP_S = 1e-3
"""The least time between two calls of a function, for its rate."""
MOST_FUNCTIONS = 50_000
"""Functions that are remembered; beyond this number the one goes that was called longest ago."""


@dataclass(slots=True)
class Mean:
    """A mean of values, of which the last ones count most. count: how many there were, at most MEASURED."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take in a value."""
        if self.count < MEASURED:
            self.count += 1
        self.value += (value - self.value) / self.count


def told(value: float, count: int) -> Mean:
    """Return a mean that stands for so many values."""
    return Mean(value, min(count, MEASURED))


def moved(mean: float, count: int, value: float) -> float:
    """Return a mean with one more value, which makes them `count`."""
    return mean + (value - mean) / min(count, MEASURED)


Means = defaultdict[str, Mean]
"""Means by kind of device. `[]` makes one that is not there, so estimates ask with `get`."""


def means() -> Means:
    """Return no means yet."""
    return defaultdict(Mean)


@dataclass(slots=True, eq=False)
class FunctionTimes:
    """The times of one function.

    Fields:
        given: what was told, by kind of device. runs: seconds without loads, by kind. loads: seconds to load one byte,
            by kind. gap_s: the seconds between its dispatches. called_s: the time of its last one. family, batch: as in
            `FunctionKnown`. cost_classes: what `adaptive` makes of the times, until these change.
    """

    given: dict[str, FunctionKnown] = field(default_factory=dict)
    runs: Means = field(default_factory=means)
    loads: Means = field(default_factory=means)
    gap_s: Mean = field(default_factory=Mean)
    called_s: float | None = None
    family: str = ""
    batch: float = 0.0
    cost_classes: tuple[int, int] | None = None


class Estimates:
    """The times of all functions.

    Fields:
        functions: by name, the one called last at the end.
    """

    def __init__(self) -> None:
        self.functions: dict[str, FunctionTimes] = {}
        self._families: dict[str, dict[str, None]] = {}
        self._lines: dict[str, dict[str, tuple[float, float]]] = {}  # intercept and slope, by family, then by kind
        self._device_loads = defaultdict[int, Mean](Mean)

    def of(self, function: str) -> FunctionTimes:
        """Return what is known of a function, as the one called last."""
        times = self.functions.pop(function, None)
        if times is None:
            times = self._new()
        self.functions[function] = times
        return times

    def _new(self) -> FunctionTimes:
        if len(self.functions) >= MOST_FUNCTIONS:
            self._forget(next(iter(self.functions)))
        return FunctionTimes()

    def _forget(self, function: str) -> None:
        times = self.functions.pop(function)
        if times.family:
            del self._families[times.family][function]
            self._lines.pop(times.family, None)

    # --- events

    def known(self, event: FunctionKnown) -> None:
        """Take in a profile, as so many observations."""
        times = self.of(event.function)
        times.cost_classes = None
        times.given[event.kind] = event
        times.runs[event.kind] = told(event.run_s, event.observations)
        if event.nbytes:
            times.loads[event.kind] = told(event.load_s / event.nbytes, event.observations)
        if event.family != times.family:
            if times.family:
                del self._families[times.family][event.function]
            if event.family:
                self._families.setdefault(event.family, {})[event.function] = None
        self._lines.pop(times.family, None)
        self._lines.pop(event.family, None)
        times.family, times.batch = event.family, event.batch

    def called(self, function: str, time_s: float) -> None:
        """Take in that a request of a function begins: one that is cancelled before is no call."""
        times = self.functions.pop(function, None)  # as `of` does: its call would take as long as the rest
        if times is None:
            times = self._new()
        self.functions[function] = times
        if times.called_s is not None:
            times.gap_s.add(time_s - times.called_s)
        times.called_s = time_s

    def ended(self, event: RequestDone, function: str, device: PhysicalDevice) -> None:
        """Take in what a request took."""
        if event.outcome is not Outcome.SUCCEEDED:
            return
        times = self.functions.get(function) or self.of(function)
        times.cost_classes = None
        times.runs[device.kind].add(event.run_s * device.speed)
        if times.family:
            self._lines.pop(times.family, None)
        if event.loaded_bytes:
            per_byte_s = event.load_s / event.loaded_bytes
            times.loads[device.kind].add(per_byte_s)
            self._device_loads[device.index].add(per_byte_s)

    # --- estimates

    def run_s(self, request: QueuedRequest, device: PhysicalDevice) -> float:
        """Return the seconds that a request runs on a device once its objects are there."""
        times = self.functions.get(request.function)
        if times is None:
            return request.share.mean_s
        mean = times.runs.get(device.kind) or of_kind(times.runs, device.kind)
        if mean is not None:
            return mean.value / device.speed
        line = self._line(times.family, device.kind) if times.family else None
        return request.share.mean_s if line is None else max(0.0, line[0] + line[1] * times.batch) / device.speed

    def load_s(self, request: QueuedRequest, device: PhysicalDevice) -> float:
        """Return the seconds to load the objects that a device lacks: as its function loads, else as the device."""
        missing_bytes = request.reads.missing_bytes(device.index) if request.reads.nbytes else 0
        return self.byte_s(request.function, device) * missing_bytes if missing_bytes else 0.0

    def byte_s(self, function: str, device: PhysicalDevice) -> float:
        """Return the seconds in which a device loads a byte of a function's objects; 0 if no load is known."""
        times = self.functions.get(function)
        mean = None if times is None else times.loads.get(device.kind)
        if mean is None:
            mean = self._device_loads.get(device.index)
        if mean is None and times is not None:
            mean = of_kind(times.loads, device.kind)
        return 0.0 if mean is None else mean.value

    def whole_load_s(self, function: str, nbytes: int) -> float:
        """Return the seconds to load all of a function's memory on some device."""
        times = self.functions.get(function)
        return self._byte_s(times) * nbytes

    def spared_s(self, function: str, now_s: float) -> float:
        """Return the seconds of loads in each second that each byte of a function's memory spares where it is.

        That is the time to load a byte, times the calls in a second: by the mean gap, or the time since the last call
        if it is longer. A function that was called once is expected again after as long as it has been away: so it is
        soon worth little.
        """
        times = self.functions.get(function)
        if times is None or times.called_s is None:
            return 0.0
        gap_s, away_s = times.gap_s.value, now_s - times.called_s
        gap_s = away_s if away_s > gap_s else gap_s  # max() would take as long as the rest
        return self._byte_s(times) / (gap_s if gap_s > SHORTEST_GAP_S else SHORTEST_GAP_S)

    def _byte_s(self, times: FunctionTimes | None) -> float:
        """Return the seconds in which some device loads a byte of a function's objects; 0 if no load is known."""
        loads = self._device_loads if times is None or not times.loads else times.loads
        return next(iter(loads.values())).value if loads else 0.0

    def _line(self, family: str, kind: str) -> tuple[float, float] | None:
        """Return intercept and slope of a family's run times over the batch size, by least squares."""
        lines = self._lines.setdefault(family, {})
        line = lines.get(kind)
        if line is None:
            members = [self.functions[name] for name in self._families[family]]
            points = [(each.batch, mean.value) for each in members if (mean := of_kind(each.runs, kind)) is not None]
            if not points:
                return None
            middle = sum(batch for batch, _ in points) / len(points)
            mean_s = sum(run_s for _, run_s in points) / len(points)
            spread = sum((batch - middle) ** 2 for batch, _ in points)
            slope = sum((batch - middle) * run_s for batch, run_s in points) / spread if spread else 0.0
            line = lines[kind] = mean_s - slope * middle, slope
        return line


def of_kind(means: Mapping[str, Mean], kind: str) -> Mean | None:
    """Return the mean of a kind of device; where there is none, that of another kind, which speeds make comparable."""
    found = means.get(kind)
    return found if found is not None or not means else next(iter(means.values()))
