"""Why a request of a pool went where it went: a record is replayed to that decision, and the policy asked there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

from kaas.errors import InvalidRecord, NotRecorded
from kaas.scheduling.candidates import Why
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Decision, Dispatch, PolicyFactory, Reject, StartWorker
from kaas.scheduling.events import Event, RequestArrived, RequestCancelled, WorkerAdopted
from kaas.scheduling.policies.explained import Explained
from kaas.scheduling.policies.state import WorkerState
from kaas.scheduling.recording import Difference, PoolEpoch, Typed, difference, new_policy, read

Fate = Literal["dispatched", "rejected", "cancelled", "waiting"]
"""How an attempt of a request left its queue; waiting: it is there at the end of the record."""
EventWithDecisions = tuple[Event, tuple[Decision, ...] | None]


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A part of the time that a request waited."""

    what: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision about a request, and what its policy knew then.

    Fields:
        epoch: number of the epoch in the record, from 1. attempt: of the request, from 1; attempts: how many it had.
        line: of the record, from 1: that of the event on which it was decided; event: this event. For a request that
            still waits it is the last line of the epoch.
        worker, device: where the request went. reason: of its rejection.
        waited: what it waited for, part by part. before: how many requests went while it waited; later: how many of
            these had arrived later.
        alone: it had to run alone, so that no other request was compared.
        why: the candidates and workers at the decision; None if the policy does not say, or if the request arrived by
            the event and did not go.
    """

    request: int
    client: str
    function: str
    policy: str
    epoch: int
    attempt: int
    attempts: int
    fate: Fate
    line: int
    event: Typed
    arrived_s: float
    decided_s: float
    worker: int | None
    device: int | None
    reason: str
    waited: tuple[WaitedFor, ...]
    before: int
    later: int
    alone: bool
    why: Why | None


@dataclass(slots=True)
class _Attempt:
    """An attempt of a request in a record: the line of its epoch, of its arrival, and of the decision about it."""

    epoch: int
    epoch_line: int
    arrived: RequestArrived
    arrived_line: int
    line: int
    fate: Fate = "waiting"


@dataclass(slots=True)
class _Meanwhile:
    """The events and decisions while a request waited."""

    states: list[tuple[float, str]] = field(default_factory=list)
    devices: dict[int, int] = field(default_factory=dict)
    before: int = 0
    later: int = 0


def explain(
    path: str | Path,
    request: int,
    policy: str | PolicyFactory | None = None,
    *,
    epoch: int | None = None,
    attempt: int | None = None,
) -> Explanation | Difference:
    """Replay a record to the decision about a request, and return why it was made.

    Args:
        path: of the record.
        request: its number.
        policy: replaces the recorded one; needed if that is the user's own.
        epoch: number of the epoch, from 1: each counts requests anew. None: the last one that has the request.
        attempt: of the request, from 1; None: the last one.

    Returns:
        The explanation; or the first difference, if the policy decides otherwise before that.

    Raises:
        InvalidRecord: the file is no record, or its policy is one of the user's own.
        NotRecorded: there is no such request, epoch or attempt.
    """
    attempts = _attempts(Path(path), request, epoch)
    found = next((each for each in reversed(attempts) if attempt in (None, each.arrived.attempt)), None)
    if found is None:
        there = ", ".join(str(each.arrived.attempt) for each in attempts)
        message = f"{path}: request {request} has no attempt {attempt} in epoch {attempts[-1].epoch}; it has {there}"
        raise NotRecorded(message, path=str(path), request=request)
    return _replayed(Path(path), found, len(attempts), policy)


def _attempts(path: Path, request: int, epoch: int | None) -> list[_Attempt]:
    """Return the attempts of a request in an epoch, or in the last one that has it."""
    found: list[_Attempt] = []
    numbers: set[int] = set()
    epochs = epoch_line = 0
    for number, entry in read(path):
        if isinstance(entry, PoolEpoch):
            epochs, epoch_line = epochs + 1, number
            continue
        if not epochs:
            raise InvalidRecord(f"{path}: an event before the first epoch", path=str(path), line=number)
        if epoch not in (None, epochs):
            continue
        event, decisions = entry
        if isinstance(event, RequestArrived):
            numbers.add(event.request)
            if event.request == request:
                found = [each for each in found if each.epoch == epochs]
                found.append(_Attempt(epochs, epoch_line, event, number, number))
        last = found[-1] if found else None
        if last is not None and last.epoch == epochs and last.fate == "waiting":
            last.line, last.fate = number, _fate(request, event, decisions or ())
    if not epochs:
        raise InvalidRecord(f"{path}: no epoch of a pool in it", path=str(path), line=0)
    if not found:
        raise NotRecorded(f"{path}: {_there_are(request, numbers, epoch, epochs)}", path=str(path), request=request)
    return found


def _fate(request: int, event: Event, decisions: tuple[Decision, ...]) -> Fate:
    if isinstance(event, RequestCancelled) and event.request == request:
        return "cancelled"
    for decision in decisions:
        if isinstance(decision, Dispatch | Reject) and decision.request == request:
            return "dispatched" if isinstance(decision, Dispatch) else "rejected"
    return "waiting"


def _there_are(request: int, numbers: set[int], epoch: int | None, epochs: int) -> str:
    if epoch is not None and not 1 <= epoch <= epochs:
        return f"no epoch {epoch}; there are 1 to {epochs}"
    where = f"epoch {epoch}" if epoch is not None else "any epoch"
    there = f"requests have the numbers {min(numbers)} to {max(numbers)}" if numbers else "no request arrived"
    return f"request {request} did not arrive in {where}; {there}"


def _replayed(
    path: Path, attempt: _Attempt, attempts: int, policy: str | PolicyFactory | None
) -> Explanation | Difference:
    """Return the explanation of an attempt, by a new policy that gets the events of its epoch."""
    request, entries = attempt.arrived.request, _from(path, attempt.epoch_line)
    _, epoch = next(entries)
    assert isinstance(epoch, PoolEpoch), "an epoch begins with its line"
    checked = new_policy(path, attempt.epoch_line, epoch, policy)
    meanwhile, whys = _Meanwhile(), list[Why]()
    for number, entry in entries:
        assert not isinstance(entry, PoolEpoch), "the attempt ends in its own epoch"
        event, expected = entry
        decides = number == attempt.line
        if decides and attempt.fate != "waiting":
            _ask(checked, attempt, whys)
        if (found := difference(checked, number, event, expected)) is not None:
            return found
        _note(meanwhile, attempt, number, entry, checked)
        if decides:
            if attempt.fate == "waiting":
                _ask(checked, attempt, whys)
            name = epoch.policy if policy is None and epoch.policy is not None else checked.name
            why = next((each for each in reversed(whys) if each.request == request), None)
            return _explained(attempt, attempts, name, entry, meanwhile, why)
    raise AssertionError("the line of the decision is one of the record")


def _from(path: Path, first: int) -> Iterator[tuple[int, PoolEpoch | EventWithDecisions]]:
    """Return an iterator over the entries of a record from a line on."""
    return (entry for entry in read(path) if entry[0] >= first)


def _ask(checked: CheckedPolicy, attempt: _Attempt, whys: list[Why]) -> None:
    """Ask the policy why: at the moment of a dispatch, if it can be watched; else now, if it knows the request."""
    request = attempt.arrived.request
    if isinstance(checked.policy, Explained) and attempt.fate == "dispatched":

        def observe(why: Why, worker: WorkerState) -> None:  # noqa: ARG001 - the record has it
            if why.request == request:
                whys.append(why)

        checked.policy.watch(observe)
    elif attempt.arrived_line < attempt.line or attempt.fate == "waiting":
        why = checked.why(request)
        if why is not None:
            whys.append(why)


def _note(
    meanwhile: _Meanwhile, attempt: _Attempt, number: int, entry: EventWithDecisions, checked: CheckedPolicy
) -> None:
    """Take in an event of the epoch: the devices of workers, and from the arrival on, what the request waits for."""
    event, decisions = entry
    if isinstance(event, WorkerAdopted):
        meanwhile.devices[event.worker] = event.device
    request = attempt.arrived.request
    for decision in decisions or ():
        if isinstance(decision, StartWorker):
            meanwhile.devices[decision.worker] = decision.device
        if isinstance(decision, Dispatch) and number >= attempt.arrived_line:
            if decision.request == request:
                break
            meanwhile.before += 1
            meanwhile.later += decision.request > request
    if number >= attempt.arrived_line and (number < attempt.line or attempt.fate == "waiting"):
        state = checked.policy.waits_for(request) if isinstance(checked.policy, Explained) else ""
        meanwhile.states.append((event.time_s, state))


def _explained(
    attempt: _Attempt, attempts: int, policy: str, entry: EventWithDecisions, meanwhile: _Meanwhile, why: Why | None
) -> Explanation:
    event, decisions = entry
    arrived = attempt.arrived
    dispatch = reject = None
    for decision in decisions or ():
        match decision:
            case Dispatch(request=arrived.request):
                dispatch = decision
            case Reject(request=arrived.request):
                reject = decision
    return Explanation(
        arrived.request,
        arrived.client,
        arrived.function,
        policy,
        attempt.epoch,
        arrived.attempt,
        attempts,
        attempt.fate,
        attempt.line,
        Typed(type(event).__name__, event),
        arrived.time_s,
        event.time_s,
        None if dispatch is None else dispatch.worker,
        None if dispatch is None else meanwhile.devices[dispatch.worker],
        "" if reject is None else reject.reason,
        tuple(_parts(meanwhile.states, event.time_s)),
        meanwhile.before,
        meanwhile.later,
        arrived.alone,
        why,
    )


def _parts(states: list[tuple[float, str]], until_s: float) -> Iterator[WaitedFor]:
    """Return an iterator over the parts of a wait in which it was for one thing; parts without time are left out."""
    starts = [(next(part)[0], what) for what, part in groupby(states, key=lambda state: state[1])]
    for (from_s, what), (end_s, _) in pairwise([*starts, (until_s, "")]):
        if what and end_s > from_s:
            yield WaitedFor(what, from_s, end_s)
