"""What becomes of the requests of a worker that ended: an error, or another run, alone.

A device does not report which kernel broke it. If several requests ran there, each is a suspect and runs again alone;
a request that breaks its device while it runs alone is at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of a request whose worker ended."""

    AGAIN = "again"
    """The request runs again, alone, and keeps its retries: nothing says that it caused the end."""
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
        others: how many other requests or cache commands ran on the worker then.
        reported: the request's own reply reported the loss of the device.
        alone: the request was dispatched to run alone, since it is a suspect.
        pure: a second run of the request does no harm.
        retries: how often the request may run again for unknown causes.
    """

    others: int
    reported: bool
    alone: bool
    pure: bool
    retries: int


def judge(case: Case) -> Verdict:
    """Return what becomes of a request.

    Each request runs again at most once without a charge, so that retries end whatever a policy does.
    """
    if case.reported and not case.others:
        return Verdict.FAULT
    if case.others and case.pure and not case.alone:
        return Verdict.AGAIN
    return Verdict.CHARGED if case.retries > 0 else Verdict.DIED


def charged_s(case: Case, verdict: Verdict, run_s: float, suspect_s: float, abandoned: bool) -> float:
    """Return the device seconds that a client is charged for a request at the end of its worker.

    A request that is not known to have ended the worker pays nothing: its run came to nothing through another's fault.
    An ABANDONED run is paid as if it had ended by itself.

    Args:
        run_s: since the dispatch. suspect_s: of earlier runs whose workers ended. abandoned: no caller waits.
    """
    if verdict is Verdict.FAULT or (verdict is Verdict.DIED and not case.others):
        return run_s + suspect_s
    return run_s if abandoned else 0.0
