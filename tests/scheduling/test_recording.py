"""Records of pools under load and failures: a replay makes the same decisions, or names the first difference."""

from __future__ import annotations

import asyncio
import io
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.config import ClientSettings, Config, Device
from kaas.errors import InvalidConfig, InvalidRecord, InvalidScenario, PolicyError
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.scheduling.decisions import Decision, Dispatch, StartWorker
from kaas.scheduling.events import (
    Event,
    FunctionKnown,
    ObjectUse,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    Tick,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.static import Static
from kaas.scheduling.recording import Recorder, read, recorded, replay
from kaas.scheduling.sharing.scaling import Configuration
from kaas.scheduling.simulation.simulator import simulate
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import WorkerInfo
from tests.lanes import spread
from tests.pool.fake_workers import FakeWorkers, settle
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parent.parent.parent
KEYS = [bytes([number] * 20) for number in range(6)]
EPOCH = '{"version":1,"policy":"fcfs","devices":[{"index":0,"kind":"gpu","memory_bytes":null}]}'
DEVICES = (PhysicalDevice(0, "software", 1 << 30), PhysicalDevice(1, "software", None))


def call(chance: random.Random) -> WorkerCall:
    client, function = chance.choice("abcd"), chance.choice("fgh")
    uses = tuple(ObjectUse(key, chance.randrange(1000)) for key in chance.sample(KEYS, 2))
    deadline_s = 1e-6 if chance.random() < 0.1 else None
    kind = WorkerKind.ETASK if chance.random() < 0.2 else WorkerKind.EXECUTOR
    return WorkerCall(function, client, deadline_s, 2, uses=uses, kind=kind)


class Workers(FakeWorkers):
    """Executors have two slots, eTask workers have one."""

    async def start(self, start: StartWorker) -> WorkerInfo:
        info = await super().start(start)
        return replace(info, slots=2 if start.kind is WorkerKind.EXECUTOR else 1)


def reply(chance: random.Random) -> WorkerReply:
    """Return the reply of a worker: a value, an error, or the end of the worker."""
    loaded, evicted = chance.sample(KEYS, 2)
    record = RunRecord({}, {}, [loaded], [evicted], chance.random())
    kind = chance.random()
    if kind < 0.03:
        return WorkerReply(lost="it broke")
    return WorkerReply(error=InvalidRecord("no"), record=record) if kind < 0.2 else WorkerReply("value", record=record)


def load(path: Path, policy: Any, seed: int, requests: int = 300, isolation: str = "none") -> None:
    """Run a pool of three devices under random load: requests with inputs that come later, cancelled ones, late ones,
    failing ones, eTasks, workers that die."""

    async def main() -> None:
        chance = random.Random(seed)
        workers = Workers()
        clients = {"a": ClientSettings(weight=2.0), "b": ClientSettings(max_running=2)}
        devices = (Device(), Device(speed=2.0), Device())
        config = Config(devices=devices, policy=policy, clients=clients, record=str(path), isolation=isolation)
        pool = Pool("test", config, workers)
        pool.open()
        await settle()
        tasks: list[asyncio.Task[Any]] = []
        inputs: list[asyncio.Future[None]] = []
        while len(tasks) < requests or not all(task.done() for task in tasks):
            if len(tasks) < requests:
                inputs.append(asyncio.get_running_loop().create_future())
                later = inputs[-1] if chance.random() < 0.2 else None
                tasks.append(asyncio.get_running_loop().create_task(pool.submit(call(chance), later)))
            if chance.random() < 0.1:
                chance.choice(tasks).cancel()
            if chance.random() < 0.05 and workers.runs:
                workers.die(chance.choice(workers.runs)[0], "killed")
            for ready in chance.sample(inputs, min(3, len(inputs))):
                if not ready.done():
                    ready.set_result(None)
            for _, _, answer in chance.sample(workers.runs, min(4, len(workers.runs))):
                if not answer.done():
                    answer.set_result(reply(chance))
            workers.runs = [run for run in workers.runs if not run[2].done()]
            await asyncio.sleep(0)
        await pool.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


@pytest.mark.parametrize(("policy", "seed"), spread(product(POLICIES, range(3)), len(POLICIES)))
def test_a_replay_decides_the_same(policy: str, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    load(path, policy, seed)
    told = replay(path)
    assert told.difference is None
    assert told.epochs == 1
    text = path.read_text()
    for name in ("RequestArrived", "InputsReady", "RequestCancelled", "RequestDone", "WorkerGone", "Residency"):
        assert text.count(f'{{"event":["{name}"') > 5
    assert told.events > 600
    assert told.decisions > 200
    assert replay(path, POLICIES[policy]) == told


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_that_keeps_clients_apart_replays_too(policy: str, tmp_path: Path) -> None:
    load(tmp_path / "run.jsonl", policy, seed=1, isolation="process")
    told = replay(tmp_path / "run.jsonl")
    assert told.difference is None
    assert told.decisions > 200


@pytest.mark.processes
@pytest.mark.parametrize("policy", spread(POLICIES, 2))
def test_another_process_decides_the_same(policy: str, tmp_path: Path) -> None:
    """In another process sets of names have another order."""
    path = tmp_path / "run.jsonl"
    load(path, policy, 7)
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "kaas.cli", "replay", str(path)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "identical" in ended.stdout


# --- small records


def record(path: Path, *told: Event, policy: Any = "fcfs", make: Callable[..., Any] | None = None) -> None:
    recorder = Recorder.open(str(path), policy, DEVICES)
    deciding = (make or FirstComeFirstServed)(DEVICES)
    for event in told:
        recorder.write(event, deciding.handle(event))
    recorder.close()


READY = WorkerReady(1.0, 0, WorkerKind.EXECUTOR, 0, 1, 1 << 30)
RECORDS = Path(__file__).parent / "records"
"""Random scenarios under each policy, recorded when records had version 1."""
EVENTS = (
    Tick(0.0),
    READY,
    Residency(1.5, 0, (b"\x00\xff", b"ab"), (b"",)),
    RequestArrived(2.0, 0, "a", "f", (ObjectUse(b"\x00", 1), ObjectUse(None, 2))),
)


def test_a_record_has_a_header_and_then_one_event_a_line(tmp_path: Path) -> None:
    record(tmp_path / "r", *EVENTS)
    first, second, *_, last = (tmp_path / "r").read_text().splitlines()
    assert first.startswith('{"version":2,"policy":"fcfs","options":{},"devices":[{"index":0,')
    assert second.startswith(
        '{"event":["Tick",{"time_s":0.0}],"decisions":[["StartWorker",{"worker":0,"kind":"executor"'
    )
    assert last.endswith('"decisions":[["Dispatch",{"request":0,"worker":0,"slot":0}]]}')
    assert replay(tmp_path / "r").events == len(EVENTS)


class Other(FirstComeFirstServed):
    """A policy of the user's own that forgets to dispatch."""

    work_conserving = False

    def handle(self, event: Event) -> list[Decision]:
        decided = super().handle(event)
        return [decision for decision in decided if not isinstance(decision, Dispatch)]


def test_a_replay_reports_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS)
    found = replay(path, Other).difference
    assert found is not None
    assert (found.line, found.event, found.expected, found.got) == (5, EVENTS[3], (Dispatch(0, 0, 0),), ())
    assert replay(path, Other).events == 3


def test_the_command_prints_the_first_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS)
    monkeypatch.setitem(POLICIES, "other", Other)
    assert CliRunner().invoke(app, ["replay", str(path)]).exit_code == 0
    ended = CliRunner().invoke(app, ["replay", str(path), "--policy", "other"])
    assert ended.exit_code == 1
    assert "different at line 5, after 1 epoch, 3 events, 2 decisions" in ended.stdout
    assert "expected: (Dispatch(request=0, worker=0, slot=0" in ended.stdout


@pytest.mark.parametrize(
    ("line", "old", "new", "words"),
    [
        (1, '"devices":[{', '"devices":[],"own":"", "x":[{', "an epoch without devices"),
        (1, '"speed":1.0', '"speed":0.0', "speed is a number from 1e-12 to 1e\\+12, not 0.0"),
        (3, '"slots":1', '"slots":-1', "slots is a number from 1 to 65536, not -1"),
        (5, '"nbytes":1', '"nbytes":-1', "nbytes is a number from 0"),
        (6, '"device_s":0.0', '"device_s":1e308', "device_s is a number from 0 to 1e\\+12, not 1e\\+308"),
        (7, '"run_s":1.0', '"run_s":1e308', "run_s is a number from 0 to 1e\\+12, not 1e\\+308"),
        (2, '"decisions"', '"raise":1,"decisions"', "Object contains unknown field `raise`"),
        (8, '"time_s":4.0', '"time_s":-4.0', "time_s is a number from 3"),
        (4, '"time_s":1.5', '"time_s":1e13', "time_s is a number from 1 to 1e\\+12"),
        (2, '"time_s":0.0', '"time_s":0.0,"x":1', "Tick has no field 'x'"),
        (5, '"nbytes":1', '"nbytes":1,"constants":true', "ObjectUse has no field 'constants'"),
        (5, '"slot":0', '"slot":0,"slots":0', "Dispatch has no field 'slots'"),
        (1, '"speed":1.0', '"speed":1.0,"speeds":0.0', "PhysicalDevice has no field 'speeds'"),
        (7, '"rate_per_s":1.0', '"rate_per_s":1e13', "rate_per_s is a number from 0 to 1e\\+12, not 10000000000000.0"),
        (7, '"batch":1}', '"batch":1152921504606846977}', "batch is a number from 1 to 1.15292e\\+18"),
        (7, '"sms":1.0', '"sms":2.0', "a profile of Configuration"),
        (7, '"sms":1.0', '"sms":1.0,"sm":1.0', "Configuration has no field 'sm'"),
        (7, '"observations":1', '"observations":-1', "observations is a number from 1 to 1.15292e\\+18, not -1"),
    ],
)
def test_a_number_that_no_pool_writes_is_an_error_with_its_line(
    tmp_path: Path, line: int, old: str, new: str, words: str
) -> None:
    path = tmp_path / "r"
    known = FunctionKnown(3.0, "g", "software", 1.0, 1.0, 1, 1, points=(Configuration(1.0, 1.0, 1.0, 1.0),))
    record(path, *EVENTS, RequestDone(3.0, 0, 0, 0, Outcome.SUCCEEDED, 0.0), known, Tick(4.0))
    lines = path.read_text().splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_text("".join(lines))
    for read_all in (replay, recorded):
        with pytest.raises(InvalidRecord, match=f"line {line}: {words}") as caught:
            read_all(path)
        assert caught.value.line == line


def test_what_functions_do_with_shares_is_replayed_and_records_from_before_still_are(tmp_path: Path) -> None:
    path = tmp_path / "r"
    known = FunctionKnown(3.0, "g", "software", 1.0, 1.0, 1, 1, points=(Configuration(0.25, 0.5, 40.0, 0.1, 4),))
    record(path, *EVENTS, RequestDone(3.0, 0, 0, 0, Outcome.SUCCEEDED, 0.0), known)
    assert known in [entry[0] for _, entry in read(path) if isinstance(entry, tuple)]
    assert replay(path).difference is None
    text = path.read_text()
    before = text.replace(',"points":[{"sms":0.25,"quota":0.5,"rate_per_s":40.0,"p99_s":0.1,"batch":4}]', "")
    assert len(before) < len(text)
    path.write_text(before)
    assert replace(known, points=()) in [entry[0] for _, entry in read(path) if isinstance(entry, tuple)]
    assert replay(path).difference is None


def test_a_time_that_goes_back_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS, Tick(4.0))
    path.write_text(path.read_text().replace('"time_s":1.5', '"time_s":1e9'))
    for read_all in (replay, recorded):
        with pytest.raises(InvalidRecord, match=r"line 5: time_s is a number from 1e\+09 to 1e\+12, not 2.0"):
            read_all(path)


def test_a_line_that_is_too_long_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS)
    with path.open("ab") as file:
        file.truncate(1 << 40)  # a hole without an end of its line
    length = len(EVENTS) + 2
    for read_all in (replay, recorded):
        with pytest.raises(InvalidRecord, match=rf"line {length}: longer than 67,108,864 bytes") as caught:
            read_all(path)
        assert caught.value.line == length


def test_an_unknown_policy_of_a_record_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "r", *EVENTS)
    (tmp_path / "r").write_text((tmp_path / "r").read_text().replace('"policy":"fcfs"', '"policy":"etask"', 1))
    with pytest.raises(InvalidRecord, match="no policy 'etask'"):
        replay(tmp_path / "r")
    with pytest.raises(InvalidScenario, match=r"^policy: no policy 'etask'") as caught:
        simulate(recorded(tmp_path / "r").scenario(2))
    assert caught.value.path == "policy"


class Raising(FirstComeFirstServed):
    """A policy that raises at the first request."""

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestArrived):
            raise ZeroDivisionError("by \x1b[2Jzero")
        return super().handle(event)


def test_a_replay_says_why_the_new_policy_decided_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS)
    found = replay(path, Raising).difference
    assert found is not None
    assert found.got is None
    assert "raised ZeroDivisionError: by" in found.error
    ended = CliRunner().invoke(app, ["replay", str(path), "--policy", f"{__name__}:Raising"])
    assert "got: policy 'Raising' raised ZeroDivisionError: by \N{REPLACEMENT CHARACTER}[2Jzero (" in ended.stdout


def test_a_policy_of_ones_own_has_to_be_given_for_a_replay(tmp_path: Path) -> None:
    record(tmp_path / "r", *EVENTS, policy=partial(Other), make=Other)
    with pytest.raises(InvalidRecord, match=f"one of your own, .*: --policy {__name__}:Other does"):
        replay(tmp_path / "r")
    assert replay(tmp_path / "r", Other).difference is None
    ended = CliRunner().invoke(app, ["replay", str(tmp_path / "r"), "--policy", f"{__name__}:Other"])
    assert "identical" in ended.stdout


def test_a_policy_without_a_module_has_to_be_given_too(tmp_path: Path) -> None:
    class Local(Other):
        pass

    record(tmp_path / "r", *EVENTS, policy=Local, make=Local)
    with pytest.raises(InvalidRecord, match="--policy module:Class does"):
        replay(tmp_path / "r")


class Options(FirstComeFirstServed):
    def __init__(self, devices: Sequence[PhysicalDevice], *, first: int = 0, second: int = 0) -> None:
        super().__init__(devices[first : second or None])


def test_options_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "options", Options)
    policy = partial(partial(Options, first=0), first=1, second=2)
    record(tmp_path / "r", Tick(0.0), policy=policy, make=policy)
    assert '"options":{"first":1,"second":2}' in (tmp_path / "r").read_text()
    assert replay(tmp_path / "r").difference is None
    assert replay(tmp_path / "r", Options).difference is not None


def test_a_policy_of_ones_own_replays_with_the_recorded_options(tmp_path: Path) -> None:
    """`Options` with first=1 owns the second device only."""
    path, policy = tmp_path / "r", partial(Options, first=1)
    record(path, Tick(0.0), policy=policy, make=policy)
    assert '"options":{"first":1},"devices":[{"index":0' in path.read_text()
    assert replay(path, Options).difference is None
    assert replay(path, partial(Options, first=0)).difference is not None  # its own options go before the recorded ones
    named = f"{__name__}:Options"
    assert "identical" in CliRunner().invoke(app, ["replay", str(path), "--policy", named]).stdout
    path.write_text(path.read_text().replace('"first"', '"third"'))
    with pytest.raises(InvalidRecord, match=f"line 1: policy '{named}' with .*third.* cannot be made"):
        replay(path, Options)


def test_requests_of_a_record_run_on_other_devices_with_the_recorded_options(tmp_path: Path) -> None:
    """`Lazy` refuses to run without its option."""
    path = tmp_path / "r"
    record(path, *EVENTS, RequestDone(3.0, 0, 0, 0, Outcome.SUCCEEDED, 1.0), policy=partial(Lazy, works=True))
    ended = CliRunner().invoke(app, ["replay", str(path), "--devices", "2", "--policy", f"{__name__}:Lazy"])
    assert ended.exit_code == 0, ended.output


class Lazy(FirstComeFirstServed):
    def __init__(self, devices: Sequence[PhysicalDevice], *, works: bool = False) -> None:
        assert works
        super().__init__(devices)


def test_a_policy_that_broke_breaks_again(tmp_path: Path) -> None:
    path = tmp_path / "r"

    async def main() -> None:
        pool = Pool("test", Config(devices=(Device(),), policy=Stubborn, record=str(path)), FakeWorkers())
        pool.open()
        await settle()
        with pytest.raises(PolicyError):
            await pool.submit(WorkerCall("f", "a", None, 0))
        await pool.close()

    asyncio.run(main())
    assert path.read_text().splitlines()[-1].endswith('"decisions":[],"raised":true}')
    assert replay(path, Stubborn).difference is None
    found = replay(path, FirstComeFirstServed).difference
    assert found is not None
    assert found.expected is None
    ended = CliRunner().invoke(app, ["replay", str(path), "--policy", "fcfs"])
    assert "expected: the policy raised" in ended.stdout


class Stubborn(FirstComeFirstServed):
    """A policy that starts the same worker once more for every request."""

    def handle(self, event: Event) -> list[Decision]:
        again = [StartWorker(0, WorkerKind.EXECUTOR, 0)] if isinstance(event, RequestArrived) else []
        return super().handle(event) + again


def test_a_later_epoch_follows_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, *EVENTS)
    path.write_bytes(path.read_bytes()[:-10])
    record(path, *EVENTS)
    told = replay(path)
    assert (told.epochs, told.events, told.difference) == (2, 7, None)
    path.write_bytes(path.read_bytes()[:-10])
    assert replay(path).events == 6


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["nonsense", '{"event":["Tick",{"time_s":0.0}],"decisions":[]}'], 1),
        (['{"event":["Tick",{"time_s":0.0}],"decisions":[]}'], 1),
        (['{"version":3,"policy":"fcfs"}', '{"event":["Tick",{"time_s":0.0}],"decisions":[]}'], 1),
        ([EPOCH, '{"event":["Tock",{"time_s":0.0}],"decisions":[]}', "{}"], 2),
        ([EPOCH, '{"event":["Tick",{"time":0.0}],"decisions":[]}', "{}"], 2),
    ],
)
def test_a_malformed_record_is_refused_with_its_line(lines: list[str], line: int, tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidRecord) as caught:
        replay(path)
    assert caught.value.line == line


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_records_of_version_1_replay(path: Path) -> None:
    assert path.read_text().startswith('{"version":1,')
    found = replay(path)
    assert found.difference is None
    assert found.events > 60


@pytest.mark.parametrize("text", ["", "\n", "nonsense", '{"versi'])
def test_a_record_without_an_epoch_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(text)
    with pytest.raises(InvalidRecord, match="no epoch"):
        replay(path)


@pytest.mark.parametrize("options", ['{"shares":{}}', '{"first":1}'])
def test_recorded_options_that_the_policy_does_not_take(options: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(EPOCH.replace('"devices"', f'"options":{options},"devices"') + "\n")
    with pytest.raises(InvalidRecord, match="line 1: policy 'fcfs' with"):
        replay(path)


def test_options_that_no_record_can_hold(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot hold the policy's options"):
        Recorder.open(str(tmp_path / "r"), partial(Static, shares={"a": range(1)}), DEVICES)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecord, match="cannot be read"):
        replay(tmp_path / "none")
    with pytest.raises(InvalidConfig, match="cannot be written"):
        Recorder.open(str(tmp_path / "none" / "r"), "fcfs", DEVICES)


@pytest.mark.parametrize("room", [0, 5])
def test_a_pool_whose_record_has_no_room_fails_every_request(
    room: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if not room:
                raise OSError(28, "No space left on device")
            return super().write(data[:room])

    async def main() -> None:
        pool = Pool("test", Config(devices=(Device(),), record=str(tmp_path / "r")), FakeWorkers())
        pool.open()
        await settle()
        opened = Recorder.open(str(tmp_path / "r"), "fcfs", DEVICES)
        monkeypatch.setattr(opened, "_file", Full())
        monkeypatch.setattr(pool, "_recorder", opened)
        with pytest.raises(InvalidConfig, match="record: "):
            await pool.submit(WorkerCall("f", "a", None, 0))
        await pool.close()

    asyncio.run(main())
