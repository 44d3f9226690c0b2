"""Functions with a promise of latency: arrivals and run times in, instances on devices out.

A function without a profile measures itself first (`trial`). Then its load decides how many instances it has, with
which shares, and where (`scaler`). A request that would end too late, as things stand, is not admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kaas.scheduling.sharing.load import LoadMeter, Predictor, trend
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.scaler import Grant, Scaler
from kaas.scheduling.sharing.scaling import Choices, Configuration, SloUnmet, choices_of
from kaas.scheduling.sharing.trial import ShareTrial

PERIOD_S = 2.0
"""Seconds over which the load of a function is measured, and for which it is predicted."""
DECIDE_S = PERIOD_S / 4
"""Seconds between two decisions about a function, unless a request would be late."""


@dataclass(slots=True, eq=False)
class PromisedFunction:
    """A function with a promise: its load, its profile, its choices.

    Fields:
        slo_s: seconds from a request's arrival to its end. trial: measures its runs; None: there is a profile. choices:
            the shares that keep the promise. unmet: the least latency that its profile has, if that is more.
        decided_s: the time of the last decision.
    """

    slo_s: float
    meter: LoadMeter
    trial: ShareTrial | None
    choices: Choices | None = None
    unmet: Configuration | None = None
    decided_s: float = float("-inf")


class Promises:
    """The functions with promises, and the devices for them. It reads no clock; equal calls give equal answers.

    Args:
        window_s: the time of which shares have parts. predictor: of a function's load.

    Fields:
        functions: by the names of their shares. changed: the functions whose instances have changed since the caller
            has looked; the caller empties it.
    """

    def __init__(self, window_s: float, predictor: Predictor = trend) -> None:
        self._window_s, self._predictor = window_s, predictor
        self.functions: dict[str, PromisedFunction] = {}
        self.changed: dict[str, None] = {}
        self._extents: dict[int, DeviceExtent] = {}
        self._fixed: dict[str, tuple[float, float]] = {}
        self._scaler = Scaler({})

    # --- what there is

    def promise(self, share: str, slo_s: float, profile: Iterable[Configuration] = ()) -> None:
        """Promise a function a latency, or another one. profile: as far as it is known."""
        meter = LoadMeter(PERIOD_S, self._predictor) if share not in self.functions else self.functions[share].meter
        self.functions[share] = PromisedFunction(slo_s, meter, ShareTrial(self._window_s, slo_s))
        self.changed[share] = None
        self.profiled(share, profile)

    def profiled(self, share: str, profile: Iterable[Configuration]) -> None:
        """Take in what instances of a function do with each share."""
        function, points = self.functions[share], tuple(profile)
        if not points:
            return
        function.trial, function.choices, function.unmet = None, None, None
        match choices_of(points, function.slo_s):
            case Choices() as choices:
                function.choices = choices
                self._scaler.add_function(share, choices)
            case SloUnmet(best=best):
                function.unmet = best
                self._forget(share)
        self.changed[share] = None

    def forget(self, share: str) -> None:
        """Take a promise back."""
        del self.functions[share]
        self._forget(share)

    def _forget(self, share: str) -> None:
        if share in self._scaler:
            self._scaler.remove_function(share)
        self.changed[share] = None

    def fix(self, shares: Mapping[str, tuple[float, float]], now_s: float) -> None:
        """Keep room for shares without promises, on every device: parts of the SMs and of the time, by name.

        All instances are placed anew, since they may be in the way.
        """
        self._fixed = {name: parts for name, parts in shares.items() if parts[1] > 0}
        self._scaler = Scaler(self._extents)
        for device in self._extents:
            self._place_fixed(device)
        for share, function in self.functions.items():
            if function.choices is not None:
                self._scaler.add_function(share, function.choices)
                self._decide(share, function, now_s)
                self.changed[share] = None

    def add_device(self, device: int, extent: DeviceExtent, now_s: float) -> None:
        """Add a device, or change its size."""
        if self._extents.get(device) == extent:
            return
        self.remove_device(device, now_s)
        self._extents[device] = extent
        self._scaler.add_device(device, extent)
        self._place_fixed(device)
        for share in self.functions:
            self.changed[share] = None  # on trial it has a share of the new device, too
        self._decide_for([*self._scaler.missing_per_s()], now_s)

    def remove_device(self, device: int, now_s: float) -> None:
        """Take in that a device is gone: its instances go elsewhere."""
        if self._extents.pop(device, None) is not None:
            self._decide_for([grant.function for grant in self._scaler.remove_device(device)], now_s)

    def _place_fixed(self, device: int) -> None:
        largest_first = sorted(self._fixed.items(), key=lambda each: each[1][0] * each[1][1], reverse=True)
        for name, (sms, quota) in largest_first:
            self._scaler.packing.place((name, device), sms, quota, device)

    def _decide_for(self, shares: Iterable[str], now_s: float) -> None:
        for share in dict.fromkeys(shares):
            self._decide(share, self.functions[share], now_s)
            self.changed[share] = None

    # --- requests

    def arrived(self, share: str, now_s: float) -> None:
        """Take in a new request."""
        self.functions[share].meter.arrived(now_s)

    def late_s(self, share: str, waiting: int, running: int, left_s: float, now_s: float) -> float | None:
        """Return the seconds after which a request is expected to end, if these are too many; None if it is in time.

        More instances are added before, if there is room for them.

        Args:
            share: of the request.
            waiting: how many requests of the share wait.
            running: how many run.
            left_s: seconds until the request has to have ended, by its own deadline.
            now_s: the time.
        """
        function = self.functions[share]
        if function.unmet is not None:
            return function.unmet.p99_s
        if function.choices is None:
            return None
        limit_s = min(left_s, function.slo_s)
        queue_per_s = (waiting + running + 1) / function.slo_s
        while (expected_s := self._expected_s(share, waiting, running)) > limit_s:
            full = self.missing_of(share) and function.decided_s == now_s
            if full or limit_s < min(each.p99_s for each in function.choices.by_efficiency):
                return expected_s  # there is no room for more, or more would not help
            self._decide(share, function, now_s, queue_per_s)
            queue_per_s *= 2
        return None

    def _expected_s(self, share: str, waiting: int, running: int) -> float:
        """Return the seconds until a request ends that arrives now."""
        grants = [*self._scaler.grants(share)]
        if not grants:
            return float("inf")
        before = max(0, waiting + running + 1 - len(grants))
        p99_s = max(grant.configuration.p99_s for grant in grants)
        return p99_s + before / sum(grant.configuration.rate_per_s for grant in grants)

    def measured(self, share: str, granted: float, run_s: float, now_s: float) -> None:
        """Take in a run without loads on a device of speed 1. granted: its part of the SMs."""
        function = self.functions.get(share)
        if function is None or function.trial is None:
            return
        before = function.trial.part
        function.trial.measured(granted, run_s)
        if function.trial.part is None:
            self.profiled(share, function.trial.profile())
            self.decide(share, now_s)
        elif function.trial.part != before:
            self.changed[share] = None

    # --- decisions

    def decide(self, share: str, now_s: float) -> None:
        """Fit a function's instances to its load, if that is due."""
        function = self.functions[share]
        if function.choices is not None and now_s >= function.decided_s + DECIDE_S:
            self._decide(share, function, now_s)

    def decide_all(self, now_s: float) -> None:
        """Fit the instances of all functions to their loads."""
        for share in self.functions:
            self.decide(share, now_s)

    def _decide(self, share: str, function: PromisedFunction, now_s: float, at_least_per_s: float = 0.0) -> None:
        function.decided_s = now_s
        load_per_s = max(function.meter.predict(now_s), at_least_per_s)
        done = self._scaler.decide(share, load_per_s, now_s)
        if done.added or done.removed or done.resized:
            self.changed[share] = None

    def grants(self, share: str) -> Iterator[Grant]:
        """Yield a function's instances."""
        if share in self._scaler:
            yield from self._scaler.grants(share)

    def missing_of(self, share: str) -> float:
        """Return the requests a second of a function for which there was no room at its last decision."""
        return self._scaler.missing_of(share)
