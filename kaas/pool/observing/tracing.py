"""Traces of requests: the pool records them, and the reader's process makes a Chrome trace, for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import msgspec

from kaas.wire.trace_context import TraceContext

LIMIT = 100_000
"""Number of requests in one trace. The trace has the number of requests that it left out."""
SPANS = ("plan", "fetch", "memory", "copy_in", "kernels", "copy_out")
"""The stages of a request, in order."""
QUEUES, DEVICES, STEPS = 1, 1000, 1_000_000
"""Process numbers in a trace: of the first client's queue, the first device, and the first client's steps."""


class Traced(msgspec.Struct, frozen=True, array_like=True):
    """An answered request. Times are on the pool's clock.

    Fields:
        device, slot, dispatched_s: place and time of the dispatch; device is None if the request was not dispatched.
        stages: seconds, as in `kaas.stats()`. context: of the caller's trace.
    """

    request: int
    client: str
    function: str
    outcome: str
    arrived_s: float
    answered_s: float
    device: int | None = None
    slot: int = 0
    dispatched_s: float = 0.0
    stages: dict[str, float] = {}
    context: TraceContext | None = None


class TraceStep(msgspec.Struct, frozen=True, array_like=True):
    """A step of a server before or after a request. stage: "before" or "after". name: of the step."""

    client: str
    function: str
    stage: str
    name: str
    begun_s: float
    ended_s: float


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """A record of requests and steps. since_s: time of its begin. left_out: number of requests beyond LIMIT."""

    since_s: float
    requests: list[Traced]
    left_out: int = 0
    steps: list[TraceStep] = []


class Tracer:
    """Records answered requests from its start on."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._requests: list[Traced] = []
        self._steps: list[TraceStep] = []
        self._left_out = 0

    def note(self, traced: Traced) -> None:
        """Record a request, unless the trace is full."""
        if len(self._requests) < LIMIT:
            self._requests.append(traced)
        else:
            self._left_out += 1

    def note_step(self, step: TraceStep) -> None:
        """Record a step, unless the trace is full."""
        if len(self._steps) < 2 * LIMIT:
            self._steps.append(step)

    def encoded(self) -> bytes:
        """Return the record for `chrome`, which takes long, and so runs in the reader's process."""
        return msgspec.msgpack.encode(Trace(self._since_s, self._requests, self._left_out, self._steps))


def chrome(record: bytes) -> bytes:
    """Return a Chrome trace, in JSON, of a Tracer's record."""
    trace = msgspec.msgpack.decode(record, type=Trace)
    begun_s = (*(each.arrived_s for each in trace.requests), *(each.begun_s for each in trace.steps))
    since_s = min([trace.since_s, *begun_s])  # viewers do not show times before 0
    events = [*chrome_events(trace.requests, since_s), *step_events(trace.steps, since_s)]
    counts = {"requests": len(trace.requests), "left_out": trace.left_out}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": counts})


def chrome_events(requests: Iterable[Traced], since_s: float) -> Iterator[dict[str, Any]]:
    """Yield the events of one process for each client, with its queue, and one for each device, with a track a slot.

    Within a request its stages follow each other. The pool does not know the time when the executor began, so the
    stages are placed in the middle of the request's time.
    """
    clients: dict[str, int] = {}
    tracks: set[tuple[int, int]] = set()
    lengths: dict[str, list[tuple[float, int]]] = {}
    for each in requests:
        client = clients.setdefault(each.client, QUEUES + len(clients))
        left_s = each.answered_s if each.device is None else each.dispatched_s
        lengths.setdefault(each.client, []).extend(((each.arrived_s, 1), (left_s, -1)))
        queued = {"cat": "queue", "name": each.function, "id": each.request, "pid": client, "tid": 0}
        yield {"ph": "b", "ts": _us(each.arrived_s - since_s), "args": _arguments(each), **queued}
        yield {"ph": "e", "ts": _us(left_s - since_s), **queued}
        if each.device is not None:
            tracks.add((each.device, each.slot))
            yield from _run(each, since_s)
    yield from _queue_lengths(clients, lengths, since_s)
    yield from _names(clients, tracks)


def step_events(steps: Iterable[TraceStep], since_s: float) -> Iterator[dict[str, Any]]:
    """Yield the events of one process for the steps of each client."""
    clients: dict[str, int] = {}
    for number, each in enumerate(steps):
        where = {"pid": clients.setdefault(each.client, STEPS + len(clients)), "tid": 0, "id": number}
        event = {"cat": "step", "name": f"{each.stage}: {each.name}", **where}
        args = {"client": each.client, "function": each.function}
        yield {"ph": "b", "ts": _us(each.begun_s - since_s), "args": args, **event}
        yield {"ph": "e", "ts": _us(each.ended_s - since_s), **event}
    for client, process in clients.items():
        yield _name("process_name", process, 0, f"steps of {client}")


def _run(each: Traced, since_s: float) -> Iterator[dict[str, Any]]:
    assert each.device is not None, "it ran"
    where = {"pid": DEVICES + each.device, "tid": each.slot, "ph": "X"}
    begun_s, ended_s = each.dispatched_s - since_s, each.answered_s - since_s
    yield _slice(where, each.function, "request", begun_s, ended_s, _arguments(each))
    stages = [(stage, each.stages[stage]) for stage in SPANS if stage in each.stages]
    took_s = sum(seconds for _, seconds in stages)
    at_s = begun_s + max(0.0, ended_s - begun_s - took_s) / 2
    for stage, seconds in stages:
        yield _slice(where, stage, "stage", at_s, min(at_s + seconds, ended_s), {})
        at_s = min(at_s + seconds, ended_s)


def _slice(
    where: Mapping[str, Any], name: str, kind: str, begun_s: float, ended_s: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    ts = _us(begun_s)
    return {"name": name, "cat": kind, **where, "ts": ts, "dur": _us(ended_s) - ts, "args": args}


def _arguments(each: Traced) -> dict[str, Any]:
    arguments: dict[str, Any] = {"request": each.request, "client": each.client, "outcome": each.outcome}
    if each.context is not None:
        arguments |= each.context._asdict()
    return arguments


def _queue_lengths(
    clients: Mapping[str, int], lengths: Mapping[str, list[tuple[float, int]]], since_s: float
) -> Iterator[dict[str, Any]]:
    for client, steps in lengths.items():
        steps.sort()
        for (at_s, _), queued in zip(steps, accumulate(step for _, step in steps), strict=True):
            counted = {"pid": clients[client], "ts": _us(at_s - since_s), "args": {"requests": max(queued, 0)}}
            yield {"ph": "C", "name": "queued", **counted}


def _names(clients: Mapping[str, int], tracks: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for client, process in clients.items():
        yield _name("process_name", process, 0, f"queue of {client}")
    for device, slot in sorted(tracks):
        yield _name("process_name", DEVICES + device, 0, f"device {device}")
        yield _name("thread_name", DEVICES + device, slot, f"slot {slot}")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _us(seconds: float) -> float:
    """Return microseconds, rounded to nanoseconds so that equal times stay equal."""
    return round(seconds * 1e6, 3)
