"""The instances that a load needs, from a function's profile: FaST-GShare's Algorithm 1, mended.

RPR, requests per resource, is a configuration's throughput over its share of the device, T / (S * Q). A gap between
load and capacity is filled with n = floor(gap / T_eff) instances of the configuration with the best RPR. The least one
that covers the rest follows. With too much capacity, the instances of lowest RPR go first. The paper's listing has
these mistakes:

- It asks for a rest above 0, where gaps without a rest occur: a gap of 0 would add an instance each time.
- The rest's configuration has to *exceed* the rest, so one that covers it exactly is passed over.
- Its text has the rest's configuration use the least resources, its formula have the least throughput. These differ,
  since profiles saturate: a whole device may yield hardly more than a quarter of it, and have the least throughput
  above many a rest. Here only configurations count that none with as small a share beats: of these the two are one.
- Scaling down is a loop without end: where the first instance does not fit into the gap, nothing changes any more.
- `return` stands inside the loop over functions, so only the first function is scaled.
- The profile's latency is not looked at, though the section is about promises of latency.
- Each gap gets a rest's instance of its own, and a growing load gathers inefficient ones. `refit` chooses the share of
  the least efficient instance anew, which here needs no restart.

Rates are compared as whole units of a millionth of a request per second, the load's rounded up and the profile's
rounded down. So sums are exact: capacity that covers a load does so the next time as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import NamedTuple

from kaas.errors import InvalidConfig

RATE_UNITS = 1_000_000
"""Units of a rate of one request per second."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A point of a function's profile: what an instance with this share does.

    Fields:
        sms: the fraction of the SMs. quota: the fraction of the time. rate_per_s: requests per second, at least 1e-6.
            p99_s: the 99th percentile of their latency, in seconds. batch: requests of one launch.

    Raises:
        InvalidConfig: a number outside of its range, or one that is infinite or none.
    """

    sms: float
    quota: float
    rate_per_s: float
    p99_s: float
    batch: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.sms <= 1 and 0 < self.quota <= 1 and self.batch >= 1):
            raise InvalidConfig(f"a profile of {self}: sms and quota are above 0 and at most 1, batch is 1 or more")
        if not (isfinite(self.rate_per_s) and self.rate >= 1 and isfinite(self.p99_s) and self.p99_s >= 0):
            raise InvalidConfig(f"a profile of {self}: rate_per_s is at least 1e-6, p99_s at least 0")

    @property
    def rate(self) -> int:
        """The throughput in units."""
        return floor(self.rate_per_s * RATE_UNITS)

    @property
    def area(self) -> float:
        """The fraction of a device that it takes: SMs times time."""
        return self.sms * self.quota

    @property
    def efficiency(self) -> float:
        """RPR: requests per second on a whole device that is filled with such instances. It has 9 digits.

        Throughput is proportional to time, so all quotas beside one fraction of the SMs are about equal: digits that
        only floating point adds do not tell them apart.
        """
        return float(f"{self.rate_per_s / (self.sms * self.quota):.9g}")

    @property
    def point(self) -> tuple[float, float, int]:
        """What tells it from others of its profile."""
        return self.sms, self.quota, self.batch


@dataclass(frozen=True, slots=True)
class SloUnmet:
    """No configuration of a profile keeps a promise of latency.

    Fields:
        slo_s: the promise, in seconds. best: the configuration with the least p99; None if the profile is empty.
    """

    slo_s: float
    best: Configuration | None


class Choices:
    """The configurations to choose from: those of a profile that keep the promise of latency.

    Fields:
        by_efficiency: the most efficient first; of equals the one with most throughput, then least latency, then fewest
            SMs. best: its first. slo_s: the promise, in seconds; None for none. points: by `Configuration.point`.
    """

    def __init__(self, configurations: Iterable[Configuration], slo_s: float | None = None) -> None:
        self.by_efficiency = tuple(
            sorted(configurations, key=lambda each: (-each.efficiency, -each.rate, each.p99_s, each.point))
        )
        self.slo_s = slo_s
        self.best = self.by_efficiency[0]
        self.points = {each.point: each for each in reversed(self.by_efficiency)}
        self._unbeaten: list[Configuration] = []  # with ascending area and rate
        for each in sorted(self.by_efficiency, key=lambda each: (each.area, -each.rate, each.p99_s, each.point)):
            if not self._unbeaten or each.rate > self._unbeaten[-1].rate:
                self._unbeaten.append(each)
        self._rates = [each.rate for each in self._unbeaten]

    def fitting(self, short: int) -> Configuration:
        """Return the next configuration for a gap of so many units: the best, or the least that covers the gap."""
        return self.best if short >= self.best.rate else self._unbeaten[bisect_left(self._rates, short)]

    def covering(self, needed: int) -> Configuration | None:
        """Return the least configuration with so much throughput, in units; None if there is none."""
        place = bisect_left(self._rates, needed)
        return self._unbeaten[place] if place < len(self._unbeaten) else None


def choices_of(profile: Sequence[Configuration], slo_s: float | None = None) -> Choices | SloUnmet:
    """Return the configurations of a profile that keep a promise of latency, or the best that the profile has.

    Args:
        profile: the measured configurations.
        slo_s: the 99th percentile of latency that is promised, in seconds; None for none.
    """
    keeping = [each for each in profile if slo_s is None or each.p99_s <= slo_s]
    if keeping:
        return Choices(keeping, slo_s)
    return SloUnmet(slo_s or 0.0, min(profile, key=lambda each: (each.p99_s, each.point), default=None))


class RunningInstance(NamedTuple):
    """An instance that runs. They go in this order: the least efficient, the slowest, the newest first.

    Fields:
        efficiency: RPR. rate: its throughput in units. newest: the negative of its number. area: the fraction of a
            device.
    """

    efficiency: float
    rate: int
    newest: int
    area: float

    @classmethod
    def of(cls, number: int, configuration: Configuration) -> RunningInstance:
        """Return the instance of a number and a configuration."""
        return cls(configuration.efficiency, configuration.rate, -number, configuration.area)

    @property
    def number(self) -> int:
        """Tells it from others; later ones have larger numbers."""
        return -self.newest


@dataclass(frozen=True, slots=True)
class Rescale:
    """What Algorithm 1 answers.

    Fields:
        add: configurations and how many instances of each. remove: numbers of instances.
    """

    add: tuple[tuple[Configuration, int], ...] = ()
    remove: tuple[int, ...] = ()


def load_units(load_per_s: float) -> int:
    """Return a load in units, rounded up.

    Raises:
        InvalidConfig: a load that is negative, infinite or no number.
    """
    if not (isfinite(load_per_s) and load_per_s >= 0):
        raise InvalidConfig(f"a load of {load_per_s} requests a second")
    return ceil(load_per_s * RATE_UNITS)


def rescale(choices: Choices, load: int, running: Iterable[RunningInstance]) -> Rescale:
    """Return the instances to add so that capacity covers a load, or those that it does not need: Algorithm 1.

    The rest of a gap is below the best configuration's throughput, so there is always one that covers it.

    Args:
        choices: the configurations.
        load: in units, as from `load_units`.
        running: the function's instances.
    """
    order = sorted(running)
    capacity = sum(each.rate for each in order)
    if capacity < load:
        count, rest = divmod(load - capacity, choices.best.rate)
        add = [(choices.best, count)] if count else []
        return Rescale(tuple([*add, (choices.fitting(rest), 1)] if rest else add))
    remove = []
    for each in order:
        capacity -= each.rate
        if capacity < load:
            break
        remove.append(each.number)
    return Rescale(remove=tuple(remove))


def refit(choices: Choices, load: int, running: Sequence[RunningInstance]) -> tuple[int, Configuration] | None:
    """Return the number of the least efficient instance and a share that suits it better; None if it has that.

    With a gap to fill the share has more throughput, up to the gap or to the best configuration. Without a gap it takes
    less of a device, and the load is still covered.

    Args:
        choices: the configurations.
        load: in units.
        running: the function's instances, in order.
    """
    if not running:
        return None
    least = running[0]
    needed = load - sum(each.rate for each in running) + least.rate
    if needed <= 0:
        return None
    if needed > least.rate:
        larger = choices.fitting(needed)
        return (least.number, larger) if larger.rate > least.rate else None
    smaller = choices.covering(needed)
    return (least.number, smaller) if smaller is not None and smaller.area < least.area else None
