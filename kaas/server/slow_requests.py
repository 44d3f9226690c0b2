"""Requests that took long, told to the operator with where their time went."""

from __future__ import annotations

import logging

from kaas.server.sessions import Run

_log = logging.getLogger(__name__)


def tell_slow(run: Run, limit_s: float | None, now_s: float) -> None:
    """A request has its answer. limit_s: those that took longer are logged; None: none are. now_s: on the loop's
    clock, as is when it began."""
    seconds = now_s - run.begun_s
    if limit_s is None or seconds <= limit_s or not run.begun_s:
        return
    request = run.request
    spent = dict(run.steps_s)
    if request is not None:
        if request.dispatched_s:
            spent["queue"] = request.dispatched_s - request.arrived_s
        spent |= request.record.stages if request.record is not None else {}
    outcome = "succeeded" if run.failure is None else run.failure.error
    told = {"client": run.client.name, "function": run.label, "seconds": seconds, "outcome": outcome}
    stages = {f"{stage}_s": round(spent[stage], 6) for stage in spent if stage not in ("request", "total")}
    trace = {"trace": run.trace} if run.trace else {}
    _log.warning("a slow request", extra={**told, **stages, **trace, "limit_by": (run.client.name, run.label)})
