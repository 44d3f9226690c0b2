"""A pool's record as a workload: the same requests as `kaas replay --scenario` has, in the order of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.errors import InvalidRecord
from kaas.scheduling.decisions import Decision, Dispatch
from kaas.scheduling.events import (
    Event,
    InputsReady,
    ObjectUse,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
)
from kaas.scheduling.recording import Recorder, recorded
from kaas.scheduling.simulation.scenario import RecordedWorkload
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.workloads.record import RecordStream
from kaas.scheduling.workloads.workload import open_workload

RECORDS = sorted((Path(__file__).parents[1] / "records").glob("*.jsonl"))
DEVICES = (PhysicalDevice(0, "software", 1 << 20),)
READS = (ObjectUse(b"w", 1 << 20),)


def record(path: Path, *told: tuple[Event, list[Decision]]) -> Path:
    recorder = Recorder.open(str(path), "fcfs", DEVICES)
    for event, decisions in told:
        recorder.write(event, decisions)
    recorder.close()
    return path


def arrived(time_s: float, request: int, function: str = "f", *, ready: bool = True) -> tuple[Event, list[Decision]]:
    return RequestArrived(time_s, request, "ada", function, READS, ready), [Dispatch(request, 0, 0)] if ready else []


def done(time_s: float, request: int, device_s: float) -> tuple[Event, list[Decision]]:
    return RequestDone(time_s, request, 0, 0, Outcome.SUCCEEDED, device_s), []


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_stream_has_the_functions_and_the_requests_of_the_record(path: Path) -> None:
    scenario, requests = open_workload(read({"workload": {"record": str(path)}}))
    whole = recorded(path).scenario(1)
    assert requests is not None
    assert scenario.functions == whole.functions
    assert list(requests) == sorted(whole.requests, key=lambda request: request.at_s)


def test_requests_come_by_the_time_at_which_they_are_ready(tmp_path: Path) -> None:
    """g arrives first, but its inputs are there later. The first f loads, so its run is that of the second."""
    path = record(
        tmp_path / "run.jsonl",
        arrived(1, 0, "g", ready=False),
        arrived(2, 1),
        (Residency(5, 0, (b"w",), ()), []),
        done(5, 1, 3.0),
        arrived(6, 2),
        (InputsReady(7, 0), [Dispatch(0, 0, 0)]),
        done(8, 2, 1.0),
        done(9, 0, 2.0),
    )
    stream = RecordStream(RecordedWorkload(str(path)))
    functions = stream.functions()
    assert (functions["f"].run_s, functions["f"].load_s, functions["g"].run_s) == (1, 2, 2)
    told = [(request.function, request.at_s, request.run_s) for request in stream.requests()]
    assert told == [("f", 0, 1), ("f", 4, 1), ("g", 5, 2)]


def test_requests_that_were_cancelled_in_the_queue_hold_no_others_back(tmp_path: Path) -> None:
    path = record(
        tmp_path / "run.jsonl",
        arrived(1, 0, ready=False),
        (RequestCancelled(2, 0), []),
        arrived(3, 1),
        done(4, 1, 1.0),
        (RequestArrived(5, 2, "ada", "late", READS), []),
    )
    stream = RecordStream(RecordedWorkload(str(path)))
    assert [*stream.functions()] == ["f"]
    assert [request.function for request in stream.requests()] == ["f"]


def test_the_first_wrong_line_is_named(tmp_path: Path) -> None:
    path = record(tmp_path / "run.jsonl", arrived(1, 0), done(2, 0, 1.0))
    path.write_bytes(path.read_bytes().replace(b'"RequestArrived"', b'"RequestLanded"'))
    with pytest.raises(InvalidRecord) as caught:
        open_workload(read({"workload": {"record": str(path)}}))
    assert (caught.value.path, caught.value.line) == (str(path), 2)
