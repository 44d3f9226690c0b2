"""Decides on each request of a worker that ended: the request fails, or runs again, alone on a worker.

A device does not report which kernel broke it. If several requests ran there, each of them may be the cause, so each
runs again alone. A request that breaks its device while it runs alone is at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The decision on a request whose worker ended."""

    AGAIN = "again"
    """The request runs again, alone, and keeps its retries: another request may have ended the worker."""
    CHARGED = "charged"
    """The request runs again, alone, with one retry less."""
    FAULT = "fault"
    """The request ended the device itself, and fails with the cause."""
    DIED = "died"
    """The cause is unknown, and the request's retries are used up."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request at the end of the worker that ran it.

    Fields:
        others: number of other requests and cache commands on the worker at that time.
        reported: the request's own reply reported the loss of the device.
        alone: the request was dispatched to run alone, after an earlier worker ended.
        pure: the request may run twice without harm.
        retries: number of further runs allowed after ends of unknown cause.
    """

    others: int
    reported: bool
    alone: bool
    pure: bool
    retries: int


def judge(case: Case) -> Verdict:
    """Return the decision on a request.

    Each request runs again at most once without losing a retry, so that retries end under any policy.
    """
    if case.reported and not case.others:
        return Verdict.FAULT
    if case.others and case.pure and not case.alone:
        return Verdict.AGAIN
    return Verdict.CHARGED if case.retries > 0 else Verdict.DIED


def charged_s(case: Case, verdict: Verdict, run_s: float, earlier_runs_s: float, abandoned: bool) -> float:
    """Return the device seconds that a client is charged for a request at the end of its worker.

    A request that is not known to have ended the worker costs nothing, since another request may have spoiled its run.
    An ABANDONED run is charged as if it had ended normally.

    Args:
        case: the request. verdict: of `judge`.
        run_s: duration since the dispatch.
        earlier_runs_s: duration of the runs whose workers ended before.
        abandoned: no caller waits.
    """
    if verdict is Verdict.FAULT or (verdict is Verdict.DIED and not case.others):
        return run_s + earlier_runs_s
    return run_s if abandoned else 0.0
