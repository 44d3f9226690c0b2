"""A drawn workload: functions of lognormal run times and memory, popular by Zipf's law, in bursts, by day and night."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import ScenarioFunction, ScenarioRequest, SyntheticWorkload

DAY_S = 86_400.0
MEDIAN_RUN_S, RUN_SIGMA = 0.684, 1.4
"""Of run times: the median of Azure's trace (Shahrad et al. 2020, Figure 7), and a narrower spread."""
RUN_LIMITS_S = (0.02, 20.0)
MEDIAN_MB, MB_SIGMA = 665.0, 0.9
LIMITS_MB = (100.0, 8000.0)
HALVINGS = 60
"""Of an interval of at most a day: to less than a picosecond."""


class Synthetic:
    """The workload for a seed. The next call of each function is all that it keeps."""

    def __init__(self, workload: SyntheticWorkload, seed: int) -> None:
        self._workload = workload
        self._seed = seed

    def functions(self) -> dict[str, ScenarioFunction]:
        """Return the functions f0, f1, ..., the one called most first."""
        draws = Draws(self._seed, "functions")
        return {f"f{number}": self._function(draws) for number in range(self._workload.functions)}

    def requests(self) -> Iterator[ScenarioRequest]:
        """Yield the calls: each function's gaps are lognormal, on a clock that goes as fast as the rate of the day."""
        draws = Draws(self._seed, "calls")
        told = self._workload
        parts = [(rank + 1) ** -told.zipf for rank in range(told.functions)]
        whole = math.fsum(parts)
        gaps_s = [whole / (told.rate * part) for part in parts]
        upcoming = [(draws.uniform() * gap_s, number) for number, gap_s in enumerate(gaps_s)]
        heapq.heapify(upcoming)
        at_s = 0.0
        while True:
            steady_s, number = upcoming[0]
            at_s = max(at_s, self._at_s(steady_s))
            if at_s >= 60 * told.minutes:
                return  # later calls are later on both clocks
            yield ScenarioRequest(f"f{number}", at_s)
            heapq.heapreplace(upcoming, (steady_s + gaps_s[number] * draws.lognormal(told.burst), number))

    def _function(self, draws: Draws) -> ScenarioFunction:
        run_s = MEDIAN_RUN_S * math.exp(RUN_SIGMA * draws.normal())
        memory_mb = _within(LIMITS_MB, MEDIAN_MB * math.exp(MB_SIGMA * draws.normal()))
        return ScenarioFunction(memory_mb, memory_mb / self._workload.load_mb_s, _within(RUN_LIMITS_S, run_s))

    def _at_s(self, steady_s: float) -> float:
        """Return the time at which as many calls are due as at a time of a steady rate.

        The rate at t is 1 + diurnal x sin(2 pi t / day) times the steady one, which starts in the morning.
        """
        swing_s = self._workload.diurnal * DAY_S / (2 * math.pi)
        if not swing_s:
            return steady_s
        low_s, high_s = max(0.0, steady_s - 2 * swing_s), steady_s
        for _ in range(HALVINGS):
            middle_s = (low_s + high_s) / 2
            if middle_s + swing_s * (1 - math.cos(2 * math.pi * middle_s / DAY_S)) < steady_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return high_s


def _within(limits: tuple[float, float], value: float) -> float:
    return min(limits[1], max(limits[0], value))
