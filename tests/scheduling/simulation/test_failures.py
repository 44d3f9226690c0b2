"""Failures: the workers of a device end, its requests arrive again, and the device comes back."""

from __future__ import annotations

from kaas.scheduling.decisions import Prefetch
from kaas.scheduling.events import Event, Ordered, RequestArrived, WorkerGone, WorkerReady
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.simulations import Told, heard, places, requests, run

ONE = {"A": {"memory_mb": 4, "fetch_s": 1, "load_s": 1, "run_s": 3}}


def failing(at_s: float, down_s: float = 0.0, device: int = 0) -> list[Told]:
    return [{"at_s": at_s, "device": device, "down_s": down_s}]


def test_a_request_runs_again_when_its_device_is_back_and_its_memory_is_fetched_again() -> None:
    result = run(functions=ONE, requests=requests((0, "A"), (0, "A")), failures=failing(4, 2))
    assert places(result) == [(0, 0, 0.0, "fetch"), (0, 0, 6.0, "fetch"), (1, 0, 11.0, "hit")]
    assert result.summary.mean_latency_s == (11 + 14) / 2
    assert result.summary.per_client["default"].charged_s == 8, "the lost time is not charged"
    assert result.summary.device_busy_s == (4 + 5 + 3,)


def test_a_request_runs_again_at_once_on_another_device() -> None:
    scenario: Told = {"devices": [{}, {}], "functions": ONE, "requests": requests((0, "A"))}
    first = run(**scenario).dispatches[0].device
    result = run(**scenario, failures=failing(4, 100, first))
    assert places(result) == [(0, first, 0.0, "fetch"), (0, 1 - first, 4.0, "fetch")]
    assert result.summary.mean_latency_s == 9


def test_the_policy_hears_of_it_as_in_a_pool() -> None:
    told = {"functions": ONE, "requests": requests((0, "A")), "failures": failing(4, 2), "worker_start_s": 0.5}
    events = heard(read(told))
    gone = next(index for index, event in enumerate(events) if isinstance(event, WorkerGone))
    arrived, ready = events[gone + 1], events[gone + 2]
    assert isinstance(arrived, RequestArrived)
    assert (arrived.request, arrived.attempt, arrived.alone, arrived.time_s) == (0, 2, True, 4)
    assert isinstance(ready, WorkerReady)
    assert ready.time_s == 6.5


def test_a_request_that_waits_for_room_arrives_again_too() -> None:
    functions = {"A": {"memory_mb": 4, "run_s": 5}, "B": {"memory_mb": 8, "run_s": 1}}
    told = {"devices": [{"memory_mb": 8, "slots": 2}], "functions": functions}
    events = heard(read({**told, "requests": requests((0, "A"), (1, "B")), "failures": failing(2, 1)}))
    assert [event.request for event in events if isinstance(event, RequestArrived)] == [0, 1, 0, 1]


def test_an_etask_does_not_run_twice() -> None:
    functions = {"A": {"kind": "etask", "run_s": 3}}
    result = run(functions=functions, requests=requests((0, "A")), failures=failing(1))
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 1.0, "failure")]


def test_a_request_whose_caller_has_left_is_charged_and_ends() -> None:
    told: list[Told] = [{"function": "A", "deadline_s": 3}]
    result = run(functions=ONE, requests=told, failures=failing(4))
    assert [each.reason for each in result.rejected] == ["deadline"]
    assert len(result.dispatches) == 1
    assert result.summary.per_client["default"].charged_s == 4


def test_a_worker_that_starts_starts_when_the_device_is_back() -> None:
    told = {"worker_start_s": 2, "functions": {"A": {}}, "requests": requests((0, "A")), "failures": failing(1, 3)}
    assert simulate(read(told), FirstComeFirstServed).dispatches[0].at_s == 6


def test_a_failure_during_the_work_of_an_earlier_epoch_ends_that() -> None:
    devices = [{"busy_until_s": 5}]
    result = run(devices=devices, functions={"A": {"run_s": 1}}, requests=requests((0, "A")), failures=failing(2, 4))
    assert places(result) == [(0, 0, 6.0, "load")]


def test_the_end_of_the_worker_answers_its_prefetches() -> None:
    told = {"functions": ONE, "requests": requests((9, "A")), "failures": failing(1, 1)}
    events: list[Event] = heard(read(told), Prefetch(0, (b"A",), 1))
    gone = next(event for event in events if isinstance(event, WorkerGone))
    assert gone.time_s == 1
    answers = [event for event in events if isinstance(event, Ordered)]
    assert all(answer.worker != gone.worker for answer in answers)
