"""The parts of a latency, by the figures of the pool or server that was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from kaas.wire.status.stats import Stats

SPLIT = ("before", "queue", "plan", "fetch", "memory", "copy_in", "kernels", "copy_out", "start", "run", "after")
"""Stages that do not overlap, in order; see `kaas.wire.status.stats.StageStats`. Of an eTask: "start" and "run"."""
WHOLE = ("request", "before", "after")
"""The whole time of the pool or server: its steps come before and after the pool's request."""
BETWEEN = "messages"
"""The rest of what the pool or server takes: its own work, the way to the executor and back."""
OUTSIDE = "outside"
"""The rest of a latency: the caller's own work, the way to the server and back."""
SAME_COUNT_S = 1.0
"""Figures of which more seconds are missing were counted anew."""


@dataclass(frozen=True, slots=True)
class StageTotals:
    """Sums over requests.

    Fields:
        seconds, counts: by stage. hits, misses: input objects that were, and were not, in the device's memory. cold:
            misses of objects that had never been there. ages_s: the seconds over which each client's, or the pool's,
            were counted.
    """

    seconds: Counter[str]
    counts: Counter[str]
    hits: int
    misses: int
    cold: int = 0
    ages_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, figures: Iterable[Stats | Mapping[str, Any]]) -> Self:
        """Return the sums of `kaas.stats()`, or of the `stats()` of several clients."""
        known = [each if isinstance(each, Stats) else msgspec.convert(each, Stats) for each in figures]
        seconds, counts = Counter[str](), Counter[str]()
        for stage in (stage for each in known for stage in each.stages):
            seconds[stage.stage] += stage.total_s  # type: ignore[assignment]
            counts[stage.stage] += stage.count
        device = [tier for each in known for tier in each.tiers if tier.tier == "device"]
        return cls(
            seconds,
            counts,
            sum(tier.objects for tier in device),
            sum(tier.misses for tier in device),
            sum(tier.compulsory for tier in device),
            tuple(each.since_s for each in known),
        )

    def since(self, before: Self, seconds: float) -> StageTotals | None:
        """Return the sums over the requests that ended after others were read, so many seconds before.

        None if the service has begun to count anew in between: after a restart, or `kaas.stats(reset=True)`.
        """
        pairs = zip(self.ages_s, before.ages_s, strict=True)
        if not all(age_s >= earlier_s + seconds - SAME_COUNT_S for age_s, earlier_s in pairs):
            return None
        return StageTotals(
            Counter({stage: total - before.seconds[stage] for stage, total in self.seconds.items()}),
            Counter({stage: count - before.counts[stage] for stage, count in self.counts.items()}),
            self.hits - before.hits,
            self.misses - before.misses,
            self.cold - before.cold,
        )

    def means_s(self, latency_s: float) -> dict[str, float]:
        """Return the mean seconds of a request in each stage that it has, and outside of all.

        latency_s: the mean latency of the same requests that the callers saw; the stages add up to it.
        """
        requests = self.counts["request"]
        if not requests:
            return {}
        means = {stage: self.seconds[stage] / requests for stage in SPLIT if self.counts[stage]}
        whole_s = sum(self.seconds[stage] for stage in WHOLE) / requests
        return {**means, BETWEEN: whole_s - sum(means.values()), OUTSIDE: latency_s - whole_s}
