"""Traces of a pool in a viewer's format, and the continuation of a caller's trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import kaas
from kaas.api.attached import current_session
from kaas.cli.main import app
from kaas.errors import InvalidRequest, PoolStopped
from kaas.pool.observing.tracing import DEVICES, LIMIT, SPANS, Trace, Traced, Tracer, chrome, chrome_events
from kaas.wire.trace_context import continued
from tests.api.conftest import DEVICE_BYTES, numbers, scale_task
from tests.pool.fake_workers import RECORD, FakeWorkers, begin, call, play, settle

pytestmark = pytest.mark.processes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

# --- the caller's trace


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"cc-{TRACE}-{SPAN}-01-what comes in later versions", 1),
    ],
)
def test_a_valid_trace_is_continued(given: str, flags: int) -> None:
    context = continued(given)
    assert (context.trace_id, context.parent_id, context.flags) == (TRACE, SPAN, flags)
    assert context.span_id != SPAN
    assert context.traceparent == f"00-{TRACE}-{context.span_id}-0{flags}"


@pytest.mark.parametrize(
    "given",
    ["", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
     f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-0g", f" 00-{TRACE}-{SPAN}-01",
     f"00-{TRACE}-{SPAN}-01\n", f"00-{TRACE[:-1]}٣-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01x"],
)  # fmt: skip
def test_an_invalid_trace_is_replaced(given: str) -> None:
    first, second = continued(given), continued(given)
    assert first.parent_id == ""
    assert first.trace_id not in (TRACE, second.trace_id)
    assert continued(first.traceparent).trace_id == first.trace_id  # the next service continues it


@settings(deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"))
def test_any_text_leads_to_a_trace_that_can_be_continued(given: str) -> None:
    context = continued(given)
    again = continued(context.traceparent)
    assert (again.trace_id, again.parent_id, again.flags) == (context.trace_id, context.span_id, context.flags)


# --- the Chrome trace


def traced(number: int, arrived_s: float, dispatched_s: float, answered_s: float, **changed: Any) -> Traced:
    stages = {"plan": 0.1, "kernels": 0.3, "copy_out": 0.1, "total": 0.5, "queue": 9.0, "request": 9.0}
    values = {"device": 1, "slot": 2, "stages": stages, **changed}
    return Traced(number, "a", "f", "succeeded", arrived_s, answered_s, dispatched_s=dispatched_s, **values)


def test_where_everything_is_shown() -> None:
    context = continued(f"00-{TRACE}-{SPAN}-01")
    ran = traced(7, 11.0, 12.0, 13.0, context=context)
    refused = Traced(8, "b", "g", "DeadlineExceeded", 11.0, 11.5)
    events = list(chrome_events([ran, refused], since_s=10.0))
    names = {
        (event["pid"], event["tid"], event["name"]): event["args"]["name"] for event in events if event["ph"] == "M"
    }
    assert names == {
        (1, 0, "process_name"): "queue of a",
        (2, 0, "process_name"): "queue of b",
        (DEVICES + 1, 0, "process_name"): "device 1",
        (DEVICES + 1, 2, "thread_name"): "slot 2",
    }
    slices = {event["name"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert slices == {
        "f": (2e6, 1e6),
        "plan": (2.25e6, 0.1e6),
        "kernels": (2.35e6, 0.3e6),
        "copy_out": (2.65e6, 0.1e6),
    }
    assert all((event["pid"], event["tid"]) == (DEVICES + 1, 2) for event in events if event["ph"] == "X")
    queued = [(event["ph"], event["pid"], event["id"], event["ts"]) for event in events if event["ph"] in "be"]
    assert queued == [("b", 1, 7, 1e6), ("e", 1, 7, 2e6), ("b", 2, 8, 1e6), ("e", 2, 8, 1.5e6)]
    (shown,) = [event["args"] for event in events if event["ph"] == "X" and event["name"] == "f"]
    assert shown == {"request": 7, "client": "a", "outcome": "succeeded", **context._asdict()}


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(0, 1)] * 3, st.dictionaries(st.sampled_from(SPANS), st.floats(0, 2))), max_size=20)
)
def test_slices_of_a_track_lie_in_each_other(requests: list[tuple[float, float, float, dict[str, float]]]) -> None:
    """One slot has one request at a time: stages stay within their request and in order, with any values."""
    at_s, taken = 5.0, []
    for number, (queued_s, ran_s, idle_s, stages) in enumerate(requests):
        taken.append(traced(number, at_s, at_s + queued_s, at_s + queued_s + ran_s, stages=stages))
        at_s += queued_s + ran_s + idle_s
    events = json.loads(chrome(trace_of(taken)))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    whole = [event for event in slices if event["cat"] == "request"]
    assert len(whole) == len(requests)
    for before, after in pairwise(sorted(whole, key=lambda event: (event["ts"], event["args"]["request"]))):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01
    for event, (_, _, _, stages) in zip(whole, requests, strict=True):
        first = slices.index(event) + 1
        parts = slices[first : first + len(stages)]
        assert [part["name"] for part in parts] == [stage for stage in SPANS if stage in stages]
        end = event["ts"]
        for part in parts:
            assert part["ts"] >= end - 0.01
            assert part["dur"] >= -0.001
            end = part["ts"] + part["dur"]
        assert end <= event["ts"] + event["dur"] + 0.01


def trace_of(requests: list[Traced]) -> bytes:
    tracer = Tracer(5.0)
    for each in requests:
        tracer.note(each)
    return tracer.encoded()


def test_lengths_of_a_queue() -> None:
    events = chrome_events([traced(1, 1, 4, 5), traced(2, 2, 5, 6), traced(3, 3, 3, 4)], since_s=0.0)
    counted = [(event["ts"] / 1e6, event["args"]["requests"]) for event in events if event["ph"] == "C"]
    assert counted == [(1, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 0)]


def test_requests_that_arrived_before_the_trace_are_shown_whole() -> None:
    told = json.loads(chrome(trace_of([traced(1, 3, 6, 7), traced(2, 5.5, 7, 8)])))
    begun = [event["ts"] for event in told["traceEvents"] if event["ph"] == "b"]
    assert begun == [0, 2.5e6]


def test_a_trace_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaas.pool.observing.tracing.LIMIT", 3)
    assert LIMIT > 3
    told = json.loads(chrome(trace_of([traced(number, 5, 6, 7) for number in range(5)])))
    assert told["otherData"] == {"requests": 3, "left_out": 2}


# --- the pool


def test_a_trace_has_the_requests_that_end_during_it() -> None:
    async def scenario(pool: Any, workers: FakeWorkers) -> None:
        before = await begin(pool.submit(call("before")))
        workers.reply()
        await before
        tracing = await begin(pool.reports.trace(1000.0))
        request = pool.begin(call("f"))
        request.trace = continued(f"00-{TRACE}-{SPAN}-01")
        late = await begin(pool.submit(call("late", deadline_s=0.001)))
        await asyncio.wait([late])
        workers.reply()
        await request.answer
        await settle()
        await pool.close()
        trace = msgspec.msgpack.decode(await tracing, type=Trace)
        late_one, whole = trace.requests
        assert (late_one.function, late_one.outcome, late_one.device) == ("late", "DeadlineExceeded", None)
        assert (whole.client, whole.function, whole.device, whole.slot) == ("alice", "f", 0, 0)
        assert whole.arrived_s <= whole.dispatched_s <= whole.answered_s
        assert whole.stages["kernels"] == RECORD.stages["kernels"]
        assert whole.context is not None
        assert whole.context.trace_id == TRACE
        with pytest.raises(PoolStopped):
            pool.check_open()  # as the service does before a trace

    play(scenario)


def test_a_cancelled_trace_ends() -> None:
    async def scenario(pool: Any, workers: FakeWorkers) -> None:  # noqa: ARG001
        tracing = await begin(pool.reports.trace(1000.0))
        assert pool.reports._tracers
        tracing.cancel()
        await asyncio.wait([tracing])
        assert tracing.cancelled()
        assert not pool.reports._tracers

    play(scenario)


def test_a_pool_measures_its_queue_its_devices_and_outcomes() -> None:
    async def scenario(pool: Any, workers: FakeWorkers) -> None:
        first = await begin(pool.submit(call("f")))
        second = await begin(pool.submit(call("f")))
        measured = pool.reports.measured()
        assert (measured.queued, measured.running, measured.devices) == (1, 1, {"busy": 1})
        workers.reply()
        await first
        await settle()
        workers.reply()
        await second
        pool.reports.stats(reset=True)
        assert pool.reports.measured().figures.outcomes == {("f", "alice", 0, "succeeded"): 2}

    play(scenario)


# --- the command, with a pool of processes


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("runtime", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        assert kaas.init(ray=False, devices=[kaas.Device("software", DEVICE_BYTES)] * 2)
        yield
        kaas.shutdown()


@pytest.mark.usefixtures("pool")
def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    results: list[Any] = []
    arguments = ["trace", "--seconds", "0.5", "-o", str(path), "--no-ray"]
    thread = Thread(target=lambda: results.append(CliRunner().invoke(app, arguments)))
    x = numbers()
    scaled = partial(kaas.call, scale_task(), {"x": x}, scalars={"factor": 2.0}, client="bob")
    scaled().result()  # devices have started, and know the kTask
    thread.start()
    while thread.is_alive():
        assert np.array_equal(scaled().result(), x * 2)
    thread.join()
    assert results[0].exit_code == 0, results[0].output
    trace = json.loads(path.read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert trace["otherData"]["requests"] == sum(event["cat"] == "request" for event in slices) > 0
    assert {event["name"] for event in slices if event["cat"] == "stage"} == set(SPANS)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"queue of bob", "slot 0"} <= names
    assert names & {"device 0", "device 1"}, "the last that was free may run them all"


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_how_long_a_trace_may_take(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="seconds"):
        current_session().trace(seconds)
