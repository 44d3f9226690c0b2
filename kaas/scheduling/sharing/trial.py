"""A function measures itself: its own requests run on ever fewer SMs, and a profile comes out.

On fewer SMs a run takes longer, and a part of the time is a part of the throughput. So only the first has to be
measured: a few runs on each part of the SMs, from all of them down. The rest follows for any part of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from kaas.scheduling.sharing.scaling import Configuration

PARTS = (1.0, 0.5, 0.25, 0.12, 0.06)
"""Parts of the SMs that are tried, one after the other."""
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Parts of the time of the profile that comes out."""
RUNS = 5
"""Runs on each part of the SMs."""
LEAST_S = 1e-6
"""A run counts as no shorter: what is shorter was not measured."""


class ShareTrial:
    """The runs of one function on parts of the SMs.

    Args:
        window_s: the time of which shares have parts. slo_s: the latency that is promised: parts on which a run alone
            takes longer are of no use.

    Fields:
        part: the part of the SMs for the next run; None once all is measured.
    """

    def __init__(self, window_s: float, slo_s: float) -> None:
        self._window_s, self._slo_s = window_s, slo_s
        self._left = list(PARTS)
        self._runs: dict[float, list[float]] = {}
        self.part: float | None = self._left.pop(0)

    def measured(self, granted: float, run_s: float) -> None:
        """Take in a run without loads. granted: the part of the SMs that it had, as a device rounds it up."""
        if self.part is None:
            return
        runs = self._runs.setdefault(granted, [])
        runs.append(max(run_s, LEAST_S))
        if len(runs) < RUNS:
            return
        self.part = None
        if median(runs) <= self._slo_s:
            measured_down_to = min(part for part, each in self._runs.items() if len(each) >= RUNS)
            self._left = [part for part in self._left if part < measured_down_to]
            self.part = self._left.pop(0) if self._left else None

    def profile(self) -> tuple[Configuration, ...]:
        """Return what an instance does with each share that was measured."""
        return profile_of({part: runs for part, runs in self._runs.items() if len(runs) >= RUNS}, self._window_s)


def profile_of(runs: Mapping[float, Sequence[float]], window_s: float) -> tuple[Configuration, ...]:
    """Return a profile over parts of the time, from the seconds of runs on each part of the SMs.

    An instance that has used its part of the time waits for the rest of the window at most, or, where a run is longer
    than its part of a window, until its mean is its part again. The p99 is the longest run with this wait.
    """
    return tuple(
        Configuration(sms, quota, quota / median(each), max(each) + (1 - quota) * max(window_s, median(each) / quota))
        for sms, each in runs.items()
        for quota in QUOTAS
    )
