"""A record becomes a scenario: the same requests on other devices, or under another policy."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import InvalidConfig, InvalidRecord, InvalidRequest
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    InputsReady,
    ObjectUse,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    ShareKnown,
    Tick,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.recording import Recorder, recorded
from kaas.scheduling.simulation.scenario import (
    PolicyChoice,
    ScenarioClient,
    ScenarioDevice,
    ScenarioFunction,
    ScenarioRequest,
    ScenarioShare,
)
from kaas.scheduling.simulation.scenario_file import parse
from kaas.scheduling.simulation.simulated import ShareSummary
from kaas.scheduling.simulation.simulator import simulate

MB = 1 << 20
DEVICES = (PhysicalDevice(0, "software", 64 * MB),)
READS = (ObjectUse(b"w", 4 * MB), ObjectUse(None, 100))


def arrived(time_s: float, request: int, client: str = "ada", function: str = "f", **said: bool | float | str) -> Event:
    return RequestArrived(time_s, request, client, function, READS, **said)  # type: ignore[arg-type]


def done(time_s: float, request: int, slot: int, device_s: float) -> Event:
    return RequestDone(time_s, request, 0, slot, Outcome.SUCCEEDED, device_s)


LIFE: tuple[Event, ...] = (
    ClientKnown(100.0, "ada", weight=2.0),
    Tick(100.0),
    WorkerReady(101.0, 0, WorkerKind.EXECUTOR, 0, 2, 48 * MB),
    arrived(102.0, 0),
    arrived(102.5, 1, "bob", ready=False, deadline_s=112.5),
    Residency(105.0, 0, (b"w",), ()),
    done(105.0, 0, 0, 3.0),
    InputsReady(106.0, 1),
    done(107.0, 1, 0, 1.0),
    arrived(108.0, 2, function="g"),
    arrived(108.0, 3, ready=False),
    RequestCancelled(108.5, 3),
    done(109.0, 2, 0, 0.5),
)


def record(path: Path, *told: Event) -> Path:
    recorder = Recorder.open(str(path), "fcfs", DEVICES)
    policy = FirstComeFirstServed(DEVICES)
    for event in told:
        recorder.write(event, policy.handle(event))
    recorder.close()
    return path


def test_requests_keep_their_times_and_functions_get_their_measured_times(tmp_path: Path) -> None:
    told = recorded(record(tmp_path / "r", *LIFE))
    scenario = told.scenario(3)
    assert scenario.policy == PolicyChoice("fcfs")
    assert scenario.devices == (ScenarioDevice(memory_mb=48.0, kind="software", slots=2),) * 3
    assert scenario.functions == {
        "f": ScenarioFunction(memory_mb=4.0, load_s=2.0, run_s=1.0, client="ada"),
        "g": ScenarioFunction(memory_mb=4.0, load_s=0.0, run_s=0.5, client="ada"),
    }
    assert scenario.clients == {"ada": ScenarioClient(weight=2.0)}
    assert scenario.requests == (
        ScenarioRequest("f", 0.0, None, 1.0),
        ScenarioRequest("f", 4.0, "bob", 1.0, 6.5),
        ScenarioRequest("g", 6.0, None, 0.5),
    )
    assert told.left_out == 1
    assert len(simulate(scenario).dispatches) == 3
    assert parse(scenario.as_json()) == scenario


def shared_life(parts: dict[int, float]) -> list[Event]:
    """Return the events of requests that run one after the other, on parts of the 128 SMs and for so many seconds."""
    told: list[Event] = [Tick(100.0), WorkerReady(101.0, 0, WorkerKind.EXECUTOR, 0, 4, 48 * MB, 128, 8)]
    for number, (sms, run_s) in enumerate(parts.items()):
        at_s = 102.0 + 10 * number
        told.append(ShareKnown(at_s, "function f", sms / 128, 0.25, 0.75))
        told.append(arrived(at_s, number, share="function f"))
        told.append(RequestDone(at_s + run_s, number, 0, 0, Outcome.SUCCEEDED, run_s, run_s))
    return told


def test_shares_are_replayed_on_the_sms_of_the_record(tmp_path: Path) -> None:
    told = recorded(record(tmp_path / "r", *shared_life({64: 1.0, 32: 2.0})))
    scenario = told.scenario(2)
    (device, _) = scenario.devices
    assert (device.sms, device.sm_step, scenario.window_s) == (128, 8, 0.1)
    share = ScenarioShare(0.25, (0.25, 0.75))
    assert scenario.functions["f"] == ScenarioFunction(4.0, 0.0, 1.0, client="ada", fills=0.5, share=share)
    assert [each.run_s for each in scenario.requests] == [1.0, 1.0], "what each takes on all SMs"
    assert parse(scenario.as_json()) == scenario
    summary = simulate(scenario).summary
    assert summary.mean_latency_s == 2.0, "on a quarter, as the last share has it"
    assert summary.per_share["function f"] == ShareSummary(4.0, 1.0, 0)


def test_a_run_that_is_as_fast_on_fewer_sms_fills_no_more(tmp_path: Path) -> None:
    told = recorded(record(tmp_path / "r", *shared_life({64: 1.0, 32: 1.0})))
    assert told.scenario(1).functions["f"].fills == 0.25


@pytest.mark.parametrize("share", [{"sms": 2.0}, {"least": -0.1}, {"most": 0.0}])
def test_a_share_that_no_pool_gives_is_refused(tmp_path: Path, share: dict[str, float]) -> None:
    path = record(tmp_path / "r", *LIFE)
    line = {"event": ["ShareKnown", {"time_s": 110.0, "share": "function f", **share}], "decisions": []}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.raises(InvalidRecord, match=next(iter(share))):
        recorded(path)


def test_epochs_follow_one_another(tmp_path: Path) -> None:
    path = record(tmp_path / "r", *LIFE)
    record(path, *LIFE)
    assert [request.at_s for request in recorded(path).scenario(1).requests] == [0.0, 4.0, 6.0, 9.0, 13.0, 15.0]


def test_a_malformed_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_text('{"event":["Tick",{"time_s":0.0}],"decisions":[]}\n\n')
    with pytest.raises(InvalidRecord):
        recorded(tmp_path / "r")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidRecord, match="no epoch"):
        recorded(tmp_path / "empty")


def test_the_command_simulates_a_record_on_other_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(tmp_path / "r", *LIFE)
    ended = CliRunner().invoke(app, ["replay", str(path), "--devices", "8", "--json"])
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert len(told["dispatches"]) == 3
    assert len(told["summary"]["device_busy_s"]) == 8
    ended = CliRunner().invoke(app, ["replay", str(path), "--scenario", str(tmp_path / "s.json")])
    assert ended.exit_code == 0, ended.output
    (tmp_path / "my_policies.py").write_text(
        textwrap.dedent("""
            from kaas.scheduling.policies.fcfs import FirstComeFirstServed
            class Mine(FirstComeFirstServed):
                pass
        """)
    )
    monkeypatch.chdir(tmp_path)
    for policy in ("exclusive", "my_policies:Mine"):
        ended = CliRunner().invoke(app, ["simulate", "s.json", "--policy", policy, "--json"])
        assert ended.exit_code == 0, ended.output
        assert len(json.loads(ended.stdout)["dispatches"]) == 3
    assert "identical" in CliRunner().invoke(app, ["replay", str(path), "--policy", "my_policies:Mine"]).stdout


def test_loads_are_those_that_the_record_measured_and_not_what_a_first_run_compiled(tmp_path: Path) -> None:
    first = RequestDone(105.0, 0, 0, 0, Outcome.SUCCEEDED, 3.0, 2.75, 0.25, 4 * MB)
    second = RequestDone(107.0, 1, 0, 0, Outcome.SUCCEEDED, 1.0, 1.0)
    scenario = recorded(record(tmp_path / "r", *LIFE[:6], first, LIFE[7], second)).scenario(1)
    assert scenario.functions["f"].load_s == 0.25
    assert [request.run_s for request in scenario.requests] == [2.75, 1.0]


def test_the_scenario_of_a_record_has_the_policy_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record(tmp_path / "r", *LIFE)
    made = tmp_path / "s.json"
    ended = CliRunner().invoke(app, ["replay", str(path), "--policy", "lb", "--scenario", str(made)])
    assert ended.exit_code == 0, ended.output
    assert parse(made.read_bytes()).policy == PolicyChoice("lb")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_policy.py").write_text("from kaas.scheduling.policies.fcfs import FirstComeFirstServed as Mine\n")
    ended = CliRunner().invoke(app, ["replay", str(path), "--policy", "own_policy:Mine", "--scenario", str(made)])
    assert isinstance(ended.exception, InvalidRequest)


class Own(FirstComeFirstServed):
    pass


def test_a_record_of_a_policy_of_ones_own_runs_under_no_other_one_unasked(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder.open(str(path), Own, DEVICES)
    policy = Own(DEVICES)
    for event in LIFE:
        recorder.write(event, policy.handle(event))
    recorder.close()
    ended = CliRunner().invoke(app, ["replay", str(path), "--devices", "2"])
    assert isinstance(ended.exception, InvalidRecord)
    assert "test_recorded:Own" in str(ended.exception)
    ended = CliRunner().invoke(app, ["replay", str(path), "--devices", "2", "--policy", "fcfs"])
    assert ended.exit_code == 0, ended.output


def test_no_command_writes_over_the_file_that_it_reads(tmp_path: Path) -> None:
    path = record(tmp_path / "r", *LIFE)
    whole = path.read_bytes()
    ended = CliRunner().invoke(app, ["replay", str(path), "--scenario", str(path)])
    assert isinstance(ended.exception, InvalidRequest)
    assert path.read_bytes() == whole
    scenario = tmp_path / "s.png"
    scenario.write_bytes(recorded(path).scenario(1).as_json())
    ended = CliRunner().invoke(app, ["simulate", str(scenario), "--plot", str(scenario)])
    assert isinstance(ended.exception, InvalidRequest)
    assert parse(scenario.read_bytes())


def test_a_record_goes_on_in_a_record_only(tmp_path: Path) -> None:
    other = tmp_path / "scenario.json"
    other.write_text('{"policy": {}}')
    with pytest.raises(InvalidConfig, match="no record"):
        Recorder.open(str(other), "fcfs", DEVICES)
    assert other.read_text() == '{"policy": {}}'
