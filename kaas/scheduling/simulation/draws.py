"""Random numbers of scenarios. They come from the scenario's seed alone, so the same scenario has the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

Drawn = TypeVar("Drawn")


class Draws:
    """The draws of one scenario for one purpose, in their order; those of two purposes are independent."""

    def __init__(self, seed: int, purpose: str = "") -> None:
        self._random = Random(f"{purpose} {seed}" if purpose else seed)

    def lognormal(self, cv: float) -> float:
        """Return a lognormal number of mean 1 with a coefficient of variation; 1 for 0."""
        if not cv:
            return 1.0
        variance = math.log1p(cv * cv)
        return self._random.lognormvariate(-variance / 2, math.sqrt(variance))

    def uniform(self) -> float:
        """Return a number from 0 to 1, without 1."""
        return self._random.random()

    def normal(self) -> float:
        """Return a normal number of mean 0 and deviation 1."""
        return self._random.gauss(0.0, 1.0)

    def choices(self, values: Sequence[Drawn], weights: Sequence[float], count: int) -> list[Drawn]:
        """Return so many of the values, each drawn by the weights."""
        return self._random.choices(values, weights, k=count)

    def shuffled(self, values: Sequence[Drawn]) -> list[Drawn]:
        """Return the values in a random order."""
        return self._random.sample(values, len(values))
