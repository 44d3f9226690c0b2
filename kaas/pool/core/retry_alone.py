"""Who is to blame for the end of a worker, and what becomes of the requests that ran there.

A device does not tell whose kernel it was: with neighbours each request is a suspect, and runs again alone. What goes
wrong then is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of a request whose worker ended."""

    AGAIN = "again"
    """It runs again, alone, and its retries are what they were: nothing says that it had a part in this."""
    CHARGED = "charged"
    """It runs again, alone, with one retry less."""
    FAULT = "fault"
    """It ended the device itself, and fails with the cause."""
    DIED = "died"
    """Nobody knows why its worker ended, and its retries are used up."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request at the end of the worker that ran it.

    Fields:
        beside: how many others ran there then. told: it has itself told of the device's loss.
        alone: it was to have its worker for itself, since it is a suspect. pure: running it twice harms nobody.
        retries: how often it may yet run again for reasons that nobody knows.
    """

    beside: int
    told: bool
    alone: bool
    pure: bool
    retries: int


def judge(case: Case) -> Verdict:
    """Each request is run again at most once without a charge, so that all of this ends, whatever a policy does."""
    if case.told and not case.beside:
        return Verdict.FAULT
    if case.beside and case.pure and not case.alone:
        return Verdict.AGAIN
    return Verdict.CHARGED if case.retries > 0 else Verdict.DIED


def charged_s(case: Case, verdict: Verdict, run_s: float, suspect_s: float, left: bool) -> float:
    """Device seconds that a request is charged that does not run again after its worker ended.

    A request that is not known to have ended the worker pays for none of it: its run came to nothing through another's
    fault. A run that went on though its caller had left is paid as if it had ended.

    Args:
        run_s: since its dispatch. suspect_s: of its earlier runs whose workers ended. left: nobody waits for it.
    """
    if verdict is Verdict.FAULT or (verdict is Verdict.DIED and not case.beside):
        return run_s + suspect_s
    return run_s if left else 0.0
