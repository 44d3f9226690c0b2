"""Random numbers of scenarios. They come from the scenario's seed alone, so the same scenario has the same ones."""

from __future__ import annotations

import math
from random import Random


class Draws:
    """The draws of one scenario, in their order."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def lognormal(self, cv: float) -> float:
        """Return a lognormal number of mean 1 with a coefficient of variation; 1 for 0."""
        if not cv:
            return 1.0
        variance = math.log1p(cv * cv)
        return self._random.lognormvariate(-variance / 2, math.sqrt(variance))
