"""Weights of several clients, and the fairness of their shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kaas.errors import InvalidRequest
from kaas.scheduling.simulation.simulated import jain


def parse(entries: Sequence[str] | None) -> dict[str, float]:
    """Return the weights of clients, given as name=weight or as name alone, whose weight is 1.

    Raises:
        InvalidRequest: a weight is no positive number, or a client is named twice.
    """
    weights: dict[str, float] = {}
    for entry in entries or ():
        name, separator, text = entry.partition("=")
        try:
            weight = float(text) if separator else 1.0
        except ValueError:
            weight = 0.0
        if not name or not 0 < weight < float("inf"):
            raise InvalidRequest(f"--client takes name or name=weight, as ann=2, not {entry!r}")
        if name in weights:
            raise InvalidRequest(f"--client: {name!r} is given twice")
        weights[name] = weight
    return weights


def judged(index: float | None) -> str:
    """Return Jain's index in words; None is that of an open loop that the service answers as its requests come."""
    if index is None:
        return "as they were sent: the service keeps up, and shares out nothing"
    return f"Jain's index {index:.3f}"


def fairness(counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """Return Jain's fairness index of what clients got for their weights: 1 is fair, 1 / n is all for one of n.

    R. Jain, D. Chiu, W. Hawe, "A quantitative measure of fairness and discrimination", 1984. Nothing for all is fair.
    """
    return jain([counts[name] / weight for name, weight in weights.items()])
