"""Why a request waits or goes: the requests that compete with it, and the workers, with the figures that decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request that may go next, or that something holds back.

    Fields:
        scores: the figures by which the policy compares requests, by name. They are compared from the left, and the
            least goes first; a figure whose name begins with "-" is taken negative, so that the most goes first. Empty
            if other requests of the same flow are first.
        figures: what else the policy knows of the request.
        held: why it may not go now, whatever worker is free; "" if it may.
    """

    request: int
    client: str
    function: str
    scores: Mapping[str, float]
    figures: Mapping[str, float]
    held: str = ""

    @property
    def place(self) -> tuple[float, ...]:
        """The place among candidates: those that may go come first, by their scores."""
        return (bool(self.held), not self.scores, *self.scores.values(), self.request)


@dataclass(frozen=True, slots=True)
class Destination:
    """A worker to which a request may go.

    Fields:
        figures: what the policy knows of the request on this worker. held: why the worker can take no request now; ""
            if it can.
    """

    worker: int
    device: int
    figures: Mapping[str, float]
    held: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """A request at one moment, as its policy sees it.

    Fields:
        waits_for: what the request waits for. candidates: the requests that wait for the same workers, the next one in
            front: of each flow the first request, and the request itself. destinations: these workers.
    """

    request: int
    waits_for: str
    candidates: tuple[Candidate, ...]
    destinations: tuple[Destination, ...]
