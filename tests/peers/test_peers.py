"""`kaas bench peers`: the peers that are here are measured, the others are named, and what KaaS loses is told."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.peers import coldstart, experiments, overhead, tenancy, turns
from kaas.peers.coldstart import StartedSide
from kaas.peers.experiments import EXPERIMENTS, QUICK, bars, in_words
from kaas.peers.losses import losses
from kaas.peers.peer_process import PeerProcess
from kaas.peers.systems import PeerFailed, PeerSystem, part_of
from kaas.peers.tenancy import MODELS, asked
from tests.limits import limited
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[2]


def ran(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kaas.cli", "bench", "peers", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_S
    )


@pytest.mark.full
@pytest.mark.processes
def test_a_kernel_in_python_runs_faster_than_in_its_simulator(tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    ended = ran("--quick", "--only", "interpreters", "--folder", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    figures = told["detail"]["rows"]["interpreters"][PeerSystem.NUMBA.title]
    assert figures["ours_s"] < figures["theirs_s"]
    assert (PeerSystem.TRITON.title in told["detail"]["not_installed"]) is not PeerSystem.TRITON.installed
    assert told["detail"]["versions"][PeerSystem.NUMBA.title]


@pytest.mark.ray
@pytest.mark.full
def test_calls_beside_an_actor_and_what_else_is_installed() -> None:
    ended = ran("--quick", "--only", "overhead, tenancy", "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["bars"]["call_over_actor"][0] < 1
    others = {side for side in told["detail"]["rows"]["overhead"] if not side.startswith("kaas.")}
    assert "Ray actor, bytes" in others
    assert others <= overhead.PEERS.keys(), "an error of another side would count as one of KaaS"
    assert (PeerSystem.SERVE.title in told["detail"]["not_installed"]) is not PeerSystem.SERVE.installed


@pytest.mark.processes
@pytest.mark.full
def test_a_cold_start_beside_what_else_is_installed(tmp_path: Path) -> None:
    """Both sides answer with the same numbers, or the run ends with WrongAnswer."""
    here = [peer.title for peer in EXPERIMENTS["coldstart"][1] if peer.installed]
    if not here:
        pytest.skip("no peer is installed")
    pytest.importorskip("tvm")
    ended = ran("--quick", "--only", "coldstart", "--folder", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout.splitlines()[-1])["detail"]["rows"]["coldstart"]
    for side in ("KaaS, in the process", "KaaS, a pool", *here):
        for state in ("warm", "dropped"):
            found = rows[f"mlp, {side}, {state}"]
            assert 0 < found["ready_s"] <= found["answer_s"]


@pytest.mark.processes
def test_an_experiment_that_there_is_not() -> None:
    ended = ran("--only", "overhed")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        1,
        f"InvalidRequest: --only takes {', '.join(EXPERIMENTS)}, not 'overhed'",
    )


def test_a_peer_is_here_with_its_package_and_its_module() -> None:
    assert PeerSystem.KAAS.installed
    assert PeerSystem.KAAS.version


def fails(*_: Any) -> Any:
    raise OSError("no room\nhere")


def test_a_peer_that_fails_is_left_out_with_its_reason_and_all_other_figures_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(sides: tuple[PeerSystem, ...], *_: Any) -> experiments.Rows:
        found: dict[str, dict[str, float]] = {}
        for side in sides:
            calls = {side.title: fails if side in (PeerSystem.TORCH, PeerSystem.IREE) else float}
            found[side.title] = {"call_s": turns.latencies_s(calls, 1, peers={side.title: side})[side.title][0]}
        return found

    chosen = {
        "coldstart": (measure, (PeerSystem.ONNXRUNTIME, PeerSystem.TORCH)),
        "replay": (measure, (PeerSystem.IREE,)),
    }
    monkeypatch.setattr(experiments, "EXPERIMENTS", chosen)
    monkeypatch.setattr(experiments, "present", tuple)
    arguments = ["bench", "peers", "--only", "coldstart,replay", "--folder", str(tmp_path)]
    ended = CliRunner().invoke(app, [*arguments, "--json"])
    assert ended.exit_code == 1
    detail = json.loads(ended.stdout)["detail"]
    reason = "OSError: no room here"
    assert detail["failed"] == {"coldstart": {"PyTorch": reason}, "replay": {"IREE": reason}}
    assert detail["left_out"] == ["replay"]
    assert {name: [*rows] for name, rows in detail["rows"].items()} == {"coldstart": ["KaaS", "ONNX Runtime"]}
    assert ended.stderr.splitlines() == [
        "coldstart: KaaS, ONNX Runtime, PyTorch ...",
        f"coldstart: PyTorch failed, and is left out: {reason}",
        "coldstart: KaaS, ONNX Runtime ...",
        "replay: KaaS, IREE ...",
        f"replay: IREE failed, and is left out: {reason}",
    ]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 1
    assert f"coldstart: PyTorch failed: {reason}" in told.stdout


def test_an_error_of_kaas_ends_the_run() -> None:
    with pytest.raises(OSError, match="no room"):
        turns.latencies_s({"KaaS": fails}, 1)
    with pytest.raises(OSError, match="no room"), part_of(PeerSystem.KAAS):
        fails()
    with pytest.raises(PeerFailed), part_of(PeerSystem.IREE):
        fails()
    failing = {"IREE": turns.MeasuredSide(fails, fails)}
    with pytest.raises(PeerFailed, match="no room"):
        turns.rates_per_s(failing, 1, 1, 1, {"IREE": PeerSystem.IREE})


@pytest.mark.processes
def test_the_process_of_a_side_says_its_words_or_is_ended() -> None:
    with PeerProcess("print(input()); print('b')") as child:
        child.order("a")
        child.expect("a")
        child.expect("b")
        child.end()
    for program, limit_s, message in (
        ("raise ImportError('no library')", TIMEOUT_S, "the process ended with status 1: ImportError: no library"),
        ("import os; os._exit(0)", TIMEOUT_S, "the process ended before it said 'ready'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", TIMEOUT_S, "the process ended with status -9"),
        ("print('Ready')", TIMEOUT_S, "the process said 'Ready', not 'ready'"),
        ("import signal; signal.pause()", 0, "the process did not say 'ready' within 0 s"),
    ):
        with PeerProcess(program, limit_s=limit_s) as silent, pytest.raises(ChildProcessError) as error:
            silent.expect("ready")
        assert str(error.value) == message
        assert silent.ended
    endless = "import signal; print('ready', flush=True); signal.pause()"
    with PeerProcess(endless, limit_s=TIMEOUT_S) as child:
        child.expect("ready")
    assert child.ended
    pausing = "import signal; signal.pause()"
    with PeerProcess(pausing, limit_s=0) as child, pytest.raises(ChildProcessError, match="did not end within 0 s"):
        child.end()
    assert child.ended
    with PeerProcess("", limit_s=TIMEOUT_S) as child:
        child.end()
        assert child.ended


@pytest.mark.processes
@pytest.mark.full
def test_a_peer_whose_package_cannot_be_imported(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("onnx")
    packages = tmp_path / "packages"
    for folder in ("onnxruntime", "onnxruntime-9.9.dist-info"):
        (packages / folder).mkdir(parents=True)
    (packages / "onnxruntime" / "__init__.py").write_text("raise ImportError('broken')\n")
    (packages / "onnxruntime-9.9.dist-info" / "METADATA").write_text("Name: onnxruntime\nVersion: 9.9\n")
    arguments = ("--quick", "--only", "coldstart", "--folder", str(tmp_path / "models"), "--json")
    ended = ran(*arguments, PYTHONPATH=str(packages))
    assert ended.returncode == 1, ended.stderr
    failed = json.loads(ended.stdout.splitlines()[-1])["detail"]["failed"]["coldstart"]
    assert failed[PeerSystem.ONNXRUNTIME.title] == "the process ended with status 1: ImportError: broken"


def test_a_peer_of_which_not_even_the_package_can_be_imported_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if PeerSystem.IREE.installed:
        pytest.skip("the peer is installed")
    for folder in ("iree", "iree_base_runtime-9.9.dist-info"):
        (tmp_path / folder).mkdir()
    (tmp_path / "iree" / "__init__.py").write_text("raise ImportError('broken')")
    (tmp_path / "iree_base_runtime-9.9.dist-info" / "METADATA").write_text("Name: iree-base-runtime\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    failed: list[tuple[str, str]] = []
    report = experiments.run(
        ("replay",), QUICK, tmp_path, fails, fails, lambda name, error: failed.append((name, error.reason))
    )
    assert failed == [("replay", "ImportError: broken")]
    assert (report.failed, report.left_out, report.absent) == (
        {"replay": {PeerSystem.IREE.title: "ImportError: broken"}},
        ["replay"],
        [],
    )


def half(graph: Path, given: Path, file: Path) -> None:
    """Write a part of a model's file, and fail."""
    assert graph.read_bytes()
    assert given.read_bytes()
    file.write_bytes(b"ha")
    fails()


def whole(graph: Path, given: Path, file: Path) -> None:  # noqa: ARG001
    file.write_bytes(b"whole")


def test_a_model_s_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with limited(resource.RLIMIT_FSIZE, 10), pytest.raises(OSError, match="mlp") as error:
        coldstart.files("mlp", tmp_path, ())
    assert error.value.filename == str(tmp_path / "mlp.onnx")  # the command prints it in one line
    assert list(tmp_path.iterdir()) == []
    side = StartedSide(PeerSystem.TORCH, ".pt", "", half)
    with pytest.raises(PeerFailed, match="no room"):
        coldstart.files("mlp", tmp_path, [side])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.npy", "mlp.onnx"]
    coldstart.files("mlp", tmp_path, [side._replace(make=whole)])
    coldstart.files("mlp", tmp_path, [side])  # the file is not made again
    assert (tmp_path / "mlp.pt").read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.npy", "mlp.onnx", "mlp.pt"]


def test_bars_are_ratios_of_the_sides() -> None:
    rows = {
        "overhead": {"kaas.call": {"call_s": 0.25}, "Ray actor": {"call_s": 1.0}},
        "interpreters": {"Triton's interpreter": {"ours_s": 0.01, "theirs_s": 1.0}},
        "coldstart": {
            f"{model}, {side}, warm": {"ready_s": seconds}
            for model, ours in (("mlp", 3.0), ("resnet50", 1.2))
            for side, seconds in (("KaaS, in the process", ours), ("ONNX Runtime", 1.0))
        },
    }
    assert bars(rows) == {
        "call_over_actor": (0.25, "<=", 0.35),
        "ready_over_onnxruntime": (1.2, "<=", 1.5),
        "triton_over_interpreter": (0.01, "<=", 0.05),
    }


@pytest.mark.parametrize(
    ("bar", "value", "told"),
    [
        (
            "call_over_actor",
            13.1,
            "a call by kaas.call is 13.1 times slower than one of a Ray actor, with the same array; "
            "the bar is 2.86 times faster or more: missed",
        ),
        (
            "multiplex_rate_over_serve",
            4.0,
            "KaaS with many models is 4 times faster than Serve, multiplexed; the bar is 3 times faster or more: met",
        ),
        (
            "ready_over_onnxruntime",
            1.25,
            "KaaS at a warm start is 1.25 times slower than ONNX Runtime; the bar is 1.5 times slower at most: met",
        ),
        ("replay_over_iree", 0.5, "a replay by KaaS is 2 times faster than one by IREE; the bar is no slower: met"),
    ],
)
def test_a_bar_says_which_side_is_faster(bar: str, value: float, told: str) -> None:
    limits = {"call_over_actor": ("<=", 0.35), "multiplex_rate_over_serve": (">=", 3.0)}
    limits |= {"ready_over_onnxruntime": ("<=", 1.5), "replay_over_iree": ("<=", 1.0)}
    assert in_words(bar, value, *limits[bar]) == told


def test_a_quick_run_has_a_median_of_three_at_least() -> None:
    assert min(QUICK.starts, QUICK.interpreted) >= 3
    assert min(QUICK.calls, QUICK.replays) >= 3 * turns.TURN
    assert QUICK.tenants >= 3 * tenancy.TURN


def test_what_each_side_of_kaas_loses_is_told() -> None:
    rows = {
        "overhead": {
            "kaas.call": {"call_s": 1.0, "rate_per_s": 100.0},
            "kaas.invoke": {"call_s": 5.0, "rate_per_s": 20.0},
            "Ray compiled graph": {"call_s": 2.0, "rate_per_s": 300.0},
        },
        "coldstart": {
            "mlp, KaaS, a pool, warm": {"ready_s": 9.0},
            "mlp, KaaS, in the process, warm": {"ready_s": 0.5},
            "mlp, ONNX Runtime, warm": {"ready_s": 1.0},
            "mlp, ONNX Runtime, dropped": {"ready_s": 1.0},
        },
        "tenancy": {"KaaS": {"jain": 0.5}, "Serve, multiplexed": {"jain": 1.0}},
        "replay": {"KaaS": {"save_s": 2.0}, "IREE": {"save_s": 1.0}},
    }
    assert [loss.word for loss in losses(rows)] == ["slower"] * 4 + ["less fair"]
    found = [(loss.experiment, loss.case, loss.figure, loss.ours, loss.peer, loss.times) for loss in losses(rows)]
    assert found == [
        ("overhead", "", "rate_per_s", "kaas.call", "Ray compiled graph", 3.0),
        ("overhead", "", "call_s", "kaas.invoke", "Ray compiled graph", 2.5),
        ("overhead", "", "rate_per_s", "kaas.invoke", "Ray compiled graph", 15.0),
        ("coldstart", "mlp, warm", "ready_s", "KaaS, a pool", "ONNX Runtime", 9.0),
        ("tenancy", "", "jain", "KaaS", "Serve, multiplexed", 2.0),
    ]


def test_popular_models_are_asked_for_more_often() -> None:
    order = asked(10_000)
    counts = [order.count(model) for model in range(MODELS)]
    assert counts[0] > 1.7 * counts[1] > counts[10] > 0
