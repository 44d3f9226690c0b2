"""`kaas explain`: why a request of a recorded pool went where it went, or did not."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from kaas.cli.main import app
from kaas.errors import InvalidRecord, NotRecorded
from kaas.scheduling.candidates import Why
from kaas.scheduling.decisions import Decision, Dispatch
from kaas.scheduling.events import ClientKnown, Event, FunctionKnown, ObjectUse, RequestArrived, RequestDone
from kaas.scheduling.explaining import Explanation, WaitedFor, explain
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.lalb import Lalbo3
from kaas.scheduling.recording import Difference, PoolEpoch, Recorder, read
from kaas.scheduling.simulation import scenario_file, start
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World
from tests.scheduling.test_recording import load


@dataclass
class Recorded(World):
    """A world whose pool writes a record."""

    path: Path = field(default_factory=Path)
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recorder = Recorder.open(str(self.path), self.name or self.factory, self.places)

    def feed(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestDone):
            event = msgspec.structs.replace(event, run_s=event.device_s)
        decisions = super().feed(event)
        self.recorder.write(event, decisions)
        return decisions


def explained(path: Path, request: int, **options: Any) -> Explanation:
    found = explain(path, request, **options)
    assert isinstance(found, Explanation)
    return found


def reason(found: Explanation) -> Why:
    assert found.why is not None
    return found.why


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain", *map(str, arguments)])


def backlog(path: Path, policy: Any = POLICIES["sjf"]) -> Recorded:
    """One device; three requests wait for the running one: the last of them is the shortest."""
    world = Recorded(policy, path=path)
    for function, run_s in (("long", 4.0), ("short", 1.0)):
        world.feed(FunctionKnown(0.0, function, "software", run_s, 0.0, 0, 20))
    world.tick()
    world.up(0)
    for at_s, function in ((1.0, "long"), (2.0, "long"), (3.0, "long"), (4.0, "short")):
        world.time_s = at_s
        world.arrive("alice" if function == "long" else "bob", function)
    world.time_s = 5.0
    world.finish(0, 4.0)
    return world


def test_a_user_sees_why_the_short_request_went_first(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    found = explained(tmp_path / "r", 3)
    assert (found.client, found.function, found.policy, found.epoch, found.attempt) == ("bob", "short", "sjf", 1, 1)
    assert (found.fate, found.worker, found.device, found.line) == ("dispatched", 0, 0, 10)
    assert (found.event.type, found.event.value.request) == ("RequestDone", 0)
    assert (found.arrived_s, found.decided_s) == (4.0, 5.0)
    assert found.waited == (WaitedFor("a free slot", 4.0, 5.0),)
    assert [(each.request, each.scores["run_s"]) for each in reason(found).candidates] == [(3, 1.0), (1, 4.0)]
    told = run(tmp_path / "r", 3)
    assert told.exit_code == 0, told.output
    assert "request 3 of bob for short: epoch 1, sjf" in told.stdout
    assert "arrived at 4 s, went to worker 0 on device 0 after 1 s" in told.stdout
    assert "line 10: RequestDone at 5 s request 0 worker 0" in told.stdout
    assert "waited 1 s, from 4 s, for: a free slot" in told.stdout
    (row,) = [line for line in told.stdout.splitlines() if "> " in line and "bob" in line]
    assert " 1 " in row
    assert "the same for all: priority (most first) 0" in told.stdout


def test_figures_are_whole_and_hashes_short_on_a_narrow_console(tmp_path: Path) -> None:
    world = Recorded(POLICIES["cfs_affinity"], path=tmp_path / "r")
    request = world.arrive("a client with a long name", f"{'102fb1ca':a<64}@{'35e4d9ed':b<56}")
    narrow = CliRunner(env={"COLUMNS": "40"}).invoke(app, ["explain", str(tmp_path / "r"), str(request)])
    assert "for 102fb1ca@35e4d9ed: epoch 1" in narrow.stdout
    (row,) = [line for line in narrow.stdout.splitlines() if "> " in line]
    assert all(f" {cell} " in row for cell in ("a client with a long name", "102fb1ca@35e4d9ed"))
    assert "…" not in narrow.stdout


def test_times_are_shown_to_the_microsecond(tmp_path: Path) -> None:
    """The clock of a pool begins with the machine's start."""
    world = Recorded(POLICIES["adaptive"], path=tmp_path / "r", time_s=7_091_457.25)
    world.tick()
    world.up(0)
    world.arrive("a", "f")
    for at_s, function in ((7_091_458.000001, "f"), (7_091_458.000002, "g")):
        world.time_s = at_s
        world.arrive("a", function)
    told = run(tmp_path / "r", 2).stdout
    assert " 7091458.000001 " in told
    assert " 7091458.000002 " in told
    assert "arrived at 7091458.000002 s, still waits after 0 s" in told
    assert "at 7091458.000002 s request 2" in told
    world.time_s = 7_091_459.5
    world.finish(0, 1.0)
    told = run(tmp_path / "r", 1).stdout
    assert "waited 1.499999 s, from 7091458.000001 s, for: " in told


def test_for_programs(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    told = json.loads(run(tmp_path / "r", 3, "--json").stdout)
    assert told["event"][0] == "RequestDone"
    assert told["why"]["candidates"][0]["scores"] == {"-priority": 0, "run_s": 1.0, "request": 3}
    assert told["why"]["destinations"][0]["figures"]["run_s"] == 1.0
    assert told["fate"] == "dispatched"


def test_rows(tmp_path: Path) -> None:
    world = Recorded(POLICIES["fcfs"], path=tmp_path / "r")
    requests = [world.arrive(client) for client in "abcdefg"]
    told = run(tmp_path / "r", requests[5], "--rows", 2).stdout
    assert "candidates, the next one in front, 3 of 7" in told
    assert "still waits" in told
    assert "line 8: RequestArrived at 0 s request 6 client g" in told


def test_requests_that_went_meanwhile(tmp_path: Path) -> None:
    world = backlog(tmp_path / "r")
    world.time_s = 6.0
    world.finish(3, 1.0)
    world.time_s = 10.0
    world.finish(1, 4.0)
    found = explained(tmp_path / "r", 2)
    assert (found.before, found.later) == (2, 1)
    assert found.waited == (WaitedFor("a free slot", 3.0, 10.0),)
    assert "requests that went meanwhile: 2, of which 1 had arrived later" in run(tmp_path / "r", 2).stdout


def test_what_a_request_waited_for_part_by_part(tmp_path: Path) -> None:
    world = Recorded(POLICIES["fcfs"], path=tmp_path / "r")
    world.tick()
    world.feed(ClientKnown(0.0, "a", max_running=1))
    first = world.arrive("a", ready=False)
    world.time_s = 1.0
    world.inputs(first)
    world.time_s = 3.0
    world.up(0)
    second = world.arrive("a")
    world.time_s = 7.0
    other = world.arrive("b")
    del other
    world.time_s = 8.0
    world.finish(first)
    assert explained(tmp_path / "r", first).waited == (
        WaitedFor("its inputs", 0.0, 1.0),
        WaitedFor("a worker to start", 1.0, 3.0),
    )
    assert [part.what for part in explained(tmp_path / "r", second).waited] == ["limits of its client"]


def test_a_promise_is_in_the_story(tmp_path: Path) -> None:
    world = Recorded(POLICIES["lalbo3"], 2, path=tmp_path / "r")
    world.feed(FunctionKnown(0.0, "f", "software", 1.0, 10.0, 1, 20))
    world.tick()
    world.up(0)
    world.up(1)
    constant = (ObjectUse(b"f", 1, True),)
    loads = world.arrive("a", inputs=constant)
    world.resident(world.running[loads][0], (b"f",))
    world.finish(loads, 1.0)
    first, promised = (world.arrive("a", inputs=constant) for _ in range(2))
    world.time_s = 1.0
    world.finish(first, 1.0)
    found = explained(tmp_path / "r", promised)
    assert found.waited == (WaitedFor(f"promised to worker {found.worker}", 0.0, 1.0),)
    chosen, other = reason(found).destinations
    assert {chosen.figures["missing_bytes"], other.figures["missing_bytes"]} == {0, 1}
    assert {chosen.figures["load_s"], other.figures["load_s"]} == {0.0, 10.0}


# --- requests that did not go


def test_a_request_that_still_waits(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    found = explained(tmp_path / "r", 2)
    assert (found.fate, found.worker, found.line) == ("waiting", None, 10)
    assert reason(found).waits_for == "a free slot"
    assert [(each.request, each.held) for each in reason(found).candidates] == [
        (1, ""),
        (2, "behind others of its flow"),
    ]
    assert "still waits after 2 s" in run(tmp_path / "r", 2).stdout


def test_a_request_that_was_cancelled(tmp_path: Path) -> None:
    world = backlog(tmp_path / "r")
    world.time_s = 6.0
    world.cancel(1)
    found = explained(tmp_path / "r", 1)
    assert (found.fate, found.line, found.event.type) == ("cancelled", 11, "RequestCancelled")
    assert [each.request for each in reason(found).candidates] == [1]
    assert "was cancelled after 4 s" in run(tmp_path / "r", 1).stdout


def test_a_request_that_was_rejected(tmp_path: Path) -> None:
    world = Recorded(POLICIES["fcfs"], path=tmp_path / "r")
    world.tick()
    request = world.arrive()
    while request in world.queued:
        world.gone(next(iter(world.starting)), "no driver")
    found = explained(tmp_path / "r", request)
    assert (found.fate, found.reason) == ("rejected", "no device of the pool starts: no driver")
    assert "was rejected: no device of the pool starts: no driver" in run(tmp_path / "r", request).stdout
    at_once = world.arrive()
    assert explained(tmp_path / "r", at_once).why is None


def test_a_request_that_runs_alone(tmp_path: Path) -> None:
    world = Recorded(POLICIES["fcfs"], path=tmp_path / "r")
    world.tick()
    world.up(0)
    first, alone = world.arrive(), world.arrive(alone=True)
    world.time_s = 2.0
    world.finish(first)
    found = explained(tmp_path / "r", alone)
    assert (found.fate, found.alone, found.why) == ("dispatched", True, None)
    assert found.waited == (WaitedFor("a worker without other requests", 0.0, 2.0),)
    assert "must run alone" in run(tmp_path / "r", alone).stdout


# --- attempts and epochs


def test_attempts(tmp_path: Path) -> None:
    world = Recorded(POLICIES["fcfs"], 2, path=tmp_path / "r")
    world.tick()
    world.up(0)
    request = world.arrive()
    world.gone(0, again=1)
    world.up(1)
    found = explained(tmp_path / "r", request)
    assert (found.attempt, found.attempts, found.worker) == (2, 2, 1)
    first = explained(tmp_path / "r", request, attempt=1)
    assert (first.attempt, first.attempts, first.worker) == (1, 2, 0)
    assert "request 0 of c for f: attempt 1, epoch 1, fcfs" in run(tmp_path / "r", request, "--attempt", 1).stdout
    with pytest.raises(NotRecorded, match="has no attempt 3 in epoch 1; it has 1, 2"):
        explain(tmp_path / "r", request, attempt=3)


def test_epochs_count_requests_anew(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    second = Recorded(POLICIES["fcfs"], path=tmp_path / "r")
    second.tick()
    second.arrive("carol")
    found = [explained(tmp_path / "r", 0), explained(tmp_path / "r", 3), explained(tmp_path / "r", 0, epoch=1)]
    assert [(each.client, each.epoch, each.policy) for each in found] == [
        ("carol", 2, "fcfs"),
        ("bob", 1, "sjf"),
        ("alice", 1, "sjf"),
    ]
    assert found[0].line == 14
    with pytest.raises(NotRecorded, match="request 3 did not arrive in epoch 2; requests have the numbers 0 to 0"):
        explain(tmp_path / "r", 3, epoch=2)
    with pytest.raises(NotRecorded, match="no epoch 3; there are 1 to 2"):
        explain(tmp_path / "r", 3, epoch=3)


# --- other policies than ours


class Own:
    """A policy of the user's own that does not explain itself."""

    def __init__(self, devices: Any) -> None:
        self._policy = FirstComeFirstServed(devices)

    def handle(self, event: Event) -> list[Decision]:
        return self._policy.handle(event)


class Telling(Own):
    """A policy of the user's own with the optional method."""

    def why(self, request: int) -> Why:
        return self._policy.why(request)


def test_a_policy_that_does_not_explain_itself(tmp_path: Path) -> None:
    backlog(tmp_path / "r", Own)
    found = explained(tmp_path / "r", 1, policy=Own)
    assert (found.policy, found.fate, found.why, found.waited) == ("Own", "dispatched", None, ())
    told = run(tmp_path / "r", 1, "--policy", f"{__name__}:Own")
    assert "The policy does not say why." in told.stdout
    assert "line 10: RequestDone" in told.stdout
    with pytest.raises(InvalidRecord, match=f"--policy {__name__}:Own"):
        explain(tmp_path / "r", 1)


def test_a_policy_with_the_optional_method_is_asked_before_the_event(tmp_path: Path) -> None:
    backlog(tmp_path / "r", Telling)
    found = explained(tmp_path / "r", 1, policy=Telling)
    assert [each.request for each in reason(found).candidates] == [1, 3]
    assert reason(found).waits_for == "a free slot"


def contended(path: Path, policy: str, seed: int) -> None:
    """Three devices that hold a part of ten functions, whose requests are often promised to busy workers."""
    draw = random.Random(seed)
    functions = {
        f"f{number}": {
            "memory_mb": draw.choice([5, 20, 40]),
            "load_s": draw.choice([0.1, 0.5, 2]),
            "run_s": draw.choice([0.05, 0.3, 1]),
            "client": f"c{number % 3}",
        }
        for number in range(10)
    }
    at_s, requests = 0.0, []
    for _ in range(250):
        at_s += draw.expovariate(5)
        requests.append({"function": f"f{min(9, int(draw.paretovariate(0.7)) - 1)}", "at_s": at_s})
    devices = [{"memory_mb": draw.choice([60, 100]), "slots": draw.choice([1, 2])} for _ in range(3)]
    told = {"policy": {"name": policy}, "devices": devices, "functions": functions, "requests": requests}
    scenario = scenario_file.read(told)
    recorder = Recorder.open(str(path), policy, start.physical(scenario))
    simulate(scenario, observe=recorder.write)


@pytest.mark.parametrize(
    ("policy", "request_id"), [("adaptive", 21), ("adaptive", 55), ("lalb", 19), ("lalb", 51), ("lalbo3", 58)]
)
def test_a_request_is_first_after_promises_that_were_taken_back(tmp_path: Path, policy: str, request_id: int) -> None:
    contended(tmp_path / "r", policy, 5)
    why = reason(explained(tmp_path / "r", request_id))
    assert (why.candidates[0].request, why.candidates[0].held) == (request_id, "")
    assert why.waits_for == "nothing: it goes"


def test_another_version_of_the_policy_is_no_explanation(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    found = explain(tmp_path / "r", 3, "fcfs")
    assert isinstance(found, Difference)
    assert (found.line, found.expected, found.got) == (10, (Dispatch(3, 0, 0),), (Dispatch(1, 0, 0),))
    told = run(tmp_path / "r", 3, "--policy", "fcfs")
    assert told.exit_code == 1
    assert "different at line 10" in told.stdout
    assert "expected: (Dispatch(request=3" in told.stdout


# --- bad input


def test_numbers_that_the_record_does_not_have(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    with pytest.raises(
        NotRecorded, match="request 9 did not arrive in any epoch; requests have the numbers 0 to 3"
    ) as error:
        explain(tmp_path / "r", 9)
    assert error.value.request == 9
    Recorded(POLICIES["fcfs"], path=tmp_path / "empty").tick()
    with pytest.raises(NotRecorded, match="no request arrived"):
        explain(tmp_path / "empty", 0)


def test_a_record_that_is_cut_off(tmp_path: Path) -> None:
    backlog(tmp_path / "r")
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole[:-20])
    assert explained(tmp_path / "r", 3).fate == "waiting"
    (tmp_path / "r").write_bytes(whole[whole.index(b"\n") + 1 :])
    with pytest.raises(InvalidRecord, match="before the first epoch"):
        explain(tmp_path / "r", 3)
    (tmp_path / "r").write_bytes(b"")
    with pytest.raises(InvalidRecord, match="no epoch"):
        explain(tmp_path / "r", 3)


# --- pools under load


def test_options_of_the_record_count(tmp_path: Path) -> None:
    policy = partial(Lalbo3, limit=0)
    world = Recorded(policy, path=tmp_path / "r", memory_bytes=1)
    world.tick()
    world.up(0)
    requests = [world.arrive(name, name, inputs=(ObjectUse(name.encode(), 1, True),)) for name in "fgf"]
    world.finish(requests[0])
    found = explained(tmp_path / "r", requests[1])
    assert reason(found).candidates[0].scores["-placed"] == -1


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_of_a_pool_under_load(policy: str, tmp_path: Path) -> None:
    """Executors die, requests are cancelled, run alone or come late: each is explained as the record has it."""
    path = tmp_path / "r"
    load(path, policy, 5, requests=60)
    arrived: set[int] = set()
    last: dict[int, str] = {}
    for _, entry in read(path):
        if not isinstance(entry, PoolEpoch):
            event, decisions = entry
            if isinstance(event, RequestArrived):
                arrived.add(event.request)
            last |= {each.request: str(each.worker) for each in decisions or () if isinstance(each, Dispatch)}
    assert len(last) > 20
    for request in sorted(arrived)[::5]:
        found = explained(path, request)
        if found.fate == "dispatched":
            assert str(found.worker) == last[request]
            if not found.alone:
                assert reason(found).candidates[0].request == request
                assert reason(found).candidates[0].held == ""
