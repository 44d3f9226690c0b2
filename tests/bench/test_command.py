"""`kaas bench` measures what a service does."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import numpy as np
import pytest

import kaas
from kaas.cli.main import main
from tests.api.conftest import scale_task, spin_task
from tests.server.conftest import Serve, serve
from tests.server.servers import WIDTH, scaled
from tests.timeouts import TIMEOUT_S

__all__ = ["serve"]


pytestmark = pytest.mark.processes


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.json"
    path.write_text(scale_task(name="scaling").to_json())
    return path


SHORT = ("--window", "0.3", "--limit", "1")
Ended = subprocess.CompletedProcess[str]


def bench(*arguments: str) -> Ended:
    """Run the command in this process: importing all that it needs takes longer than many of these tests."""
    command = ["kaas", "bench", *(() if "--scenario" in arguments else SHORT), *arguments]
    stdout, stderr = StringIO(), StringIO()
    with patch.object(sys, "argv", command), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            return Ended(command, int(end.code or 0), stdout.getvalue(), stderr.getvalue())
    raise AssertionError("a command ends with its exit status")


def bench_by_itself(*arguments: str, stdout: IO[str] | int = subprocess.PIPE) -> Ended:
    """Run the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "kaas.cli", "bench", *SHORT, *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=environment, timeout=TIMEOUT_S
    )


def measured(*arguments: str, run: Callable[..., Ended] = bench) -> list[dict[str, Any]]:
    ended = run(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_closed_and_open_loops_in_a_pool_of_its_own(task_file: Path) -> None:
    own = ("--scalar", "factor=3")
    found = measured(str(task_file), *own, "--concurrency", "2", "--rate", "20")
    assert [each["load"] for each in found] == ["concurrency 2", "rate 20/s"]
    for each in found:
        assert each["lost"] == 0
        assert each["errors"] == {}
        assert each["requests"] > 0
        if each["state"] != "unstable":  # a machine that is too busy for this rate gives no latency
            assert 0 < each["p50_ms"] <= (each["p90_ms"] or each["p50_ms"])
        assert each["stages_ms"].keys() >= {"queue", "kernels", "outside"}
        assert all(mean_ms >= 0 for mean_ms in each["stages_ms"].values())
        assert 0 < each["own_cores"] < 2


@pytest.mark.full
def test_a_running_pool_is_taken_as_it_is(task_file: Path) -> None:
    name = f"running_{os.getpid()}"
    kaas.init(ray=False, name=name, devices=[kaas.Device("software", 16 << 20)], policy="cfs_affinity")
    try:
        (found,) = measured(str(task_file), "--name", name, "--scalar", "factor=3")
    finally:
        kaas.shutdown()
    assert found["requests"] > 0


def test_a_device_with_two_slots_is_no_more_than_busy(tmp_path: Path) -> None:
    name, task = f"slots_{os.getpid()}", tmp_path / "spin.json"
    task.write_text(spin_task().to_json())
    kaas.init(ray=False, name=name, config=kaas.Config(devices=(kaas.Device("software", 16 << 20),), slots=2))
    try:
        (found,) = measured(str(task), "--name", name, "--scalar", "steps=20000000", "--concurrency", "4")
    finally:
        kaas.shutdown()
    assert 0 < found["utilisation"] <= 1


@pytest.mark.full
def test_several_clients_of_a_pool(task_file: Path) -> None:
    own = ("--scalar", "factor=3", "--policy", "cfs_affinity")
    (found,) = measured(str(task_file), *own, "--concurrency", "4", "--client", "ann=1", "--client", "bob=2")
    assert found["clients"].keys() == {"ann", "bob"}
    assert all(found["clients"].values())
    assert 0.5 <= found["jain"] <= 1


def test_a_policy_of_ones_own(task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noted_policy.py").write_text(
        "from pathlib import Path\n"
        "from kaas.scheduling.policies import factory\n"
        "def noted(devices):\n"
        "    Path(__file__).with_name('made').touch()\n"
        "    return factory('mqfq_sticky')(devices)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = ("--scalar", "factor=3", "--policy")
    (found,) = measured(str(task_file), *own, "noted_policy:noted")
    assert (found["requests"] > 0, found["errors"]) == (True, {})
    assert (tmp_path / "made").exists()
    ended = bench(str(task_file), *own, "noted_policy:missing")
    told = "InvalidConfig: policy is 'noted_policy:missing': module 'noted_policy' has no function or class 'missing'"
    assert ended.stderr.splitlines()[-1] == told


def test_a_server(serve: Serve, task_file: Path) -> None:
    server = serve(insecure=True)
    (found,) = measured(str(task_file), "--server", server.endpoint, "--scalar", "factor=3")
    assert found["requests"] > 0
    assert found["errors"] == {}
    assert found["stages_ms"]["kernels"] > 0
    with kaas.Client(server.endpoint) as client:
        client.register(scale_task(), name="known")
    (found,) = measured("known", "--server", server.endpoint, "--scalar", "factor=3")
    assert (found["requests"] > 0, found["errors"]) == (True, {})
    ended = bench("unknown", "--server", server.endpoint)
    assert (ended.returncode, ended.stderr.splitlines()[-1].partition(":")[0]) == (1, "UnknownFunction")


def test_a_function_with_a_step_before_it_takes_the_values_of_the_step(serve: Serve, tmp_path: Path) -> None:
    server = serve({"steps": {"read": "tests.server.steps.functions:from_text"}}, insecure=True)
    with kaas.Client(server.endpoint) as client:
        client.register(scaled(), name="read", before="read")
    given = tmp_path / "text.json"
    given.write_text(json.dumps({"text": "1 " * WIDTH}))
    (found,) = measured("read", "--server", server.endpoint, "--inputs", str(given))
    assert (found["requests"] > 0, found["errors"]) == (True, {})
    assert found["stages_ms"]["before"] > 0
    ended = bench("read", "--server", server.endpoint)
    assert (ended.returncode, ended.stderr.splitlines()[-1].partition(":")[0]) == (1, "StepFailed")
    assert "what the step takes comes from --inputs" in ended.stderr


def test_a_server_with_keys_asks_for_the_option_that_has_them(serve: Serve, task_file: Path) -> None:
    ended = bench(str(task_file), "--server", serve().endpoint, "--scalar", "factor=3")
    assert ended.returncode == 1
    # on a loaded machine the client may only see that the server hangs up
    assert ended.stderr.endswith(("kaas.Client(address, keys=...), on the command line --keys\n", "this address\n"))


@pytest.mark.full
def test_a_python_function_that_makes_a_ktask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from tests.api.conftest import scale_task\n")
    monkeypatch.chdir(tmp_path)
    (found,) = measured("mine:scale_task", "--scalar", "factor=3", run=bench_by_itself)
    assert (found["requests"] > 0, found["errors"]) == (True, {})


@pytest.mark.full
def test_a_python_function_that_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def text():\n    return ''\n")
    monkeypatch.chdir(tmp_path)
    words = "mine:text returns a kTask or a CompiledModel or a kaas.Function, not a str"
    assert words in bench_by_itself("mine:text").stderr
    assert "module 'mine' has no function or class 'nothing'" in bench_by_itself("mine:nothing").stderr


@pytest.mark.full
def test_a_function_whose_constants_its_program_has_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, kaas\n"
        "from tests.api.conftest import scale_task\n"
        "def scaled():\n"
        "    task = scale_task()\n"
        "    (x,) = task.inputs\n"
        "    return kaas.register(task, constants={'x': np.ones(x.shape, x.dtype)})\n"
    )
    monkeypatch.chdir(tmp_path)
    (found,) = measured("mine:scaled", "--scalar", "factor=3", run=bench_by_itself)
    assert (found["requests"] > 0, found["errors"]) == (True, {})
    assert found["hits"] > found["misses"]
    ended = bench_by_itself("mine:scaled", "--server", "tcp://127.0.0.1:1")
    assert ended.returncode == 1
    assert "InvalidRequest: mine:scaled registers in a pool; at a server a client registers" in ended.stderr


def test_a_pool_that_does_not_run_is_not_replaced_by_another_one(task_file: Path) -> None:
    ended = bench(str(task_file), "--scalar", "factor=3", "--name", "no such")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("NotInitialized: no pool 'no such' runs on this machine without Ray")


def test_a_file_that_there_is_not() -> None:
    for target in ("missing.json", "scaling"):
        ended = bench(target)
        assert (ended.returncode, ended.stderr.startswith(f"InvalidRequest: there is no file '{target}'")) == (1, True)


@pytest.mark.parametrize("service", ["--server=tcp://127.0.0.1:1", "--inference-protocol=http://127.0.0.1:1"])
def test_a_name_that_is_no_text_is_refused(service: str) -> None:
    ended = bench("\udcff", service)
    told = "InvalidRequest: the name of a function or a model is a text, not '\\udcff'"
    assert (ended.returncode, ended.stderr.splitlines()) == (1, [told])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "fast"), "--rate takes numbers"),
        (("--rate", "10:"), "--rate takes numbers, as 10, or 10:1000, not '10:'"),
        (("--concurrency", "0"), "--concurrency takes positive numbers"),
        (("--concurrency", "2.5"), "--concurrency takes whole numbers"),
        (("--client", "ann=much"), "--client takes name or name=weight"),
        (("--client", "ann", "--client", "bob", "--scalar", "factor=3"), "2 clients need a multiple of 2 callers"),
        (
            ("--policy", "fcfs", "--server", "tcp://127.0.0.1:1"),
            "--policy is of a pool, and has no meaning with --server",
        ),
        (("--scenario", "offline", "--rate", "1", "--concurrency", "2"), "a --scenario has loops of its own"),
        *(
            (("--scenario", "server", "--rate", "1", *option), f"one line of figures: leave out {option[0]}")
            for option in (
                ("--seed", "0"),
                ("--arrivals", "constant"),
                ("--limit", "9"),
                ("--window", "1"),
                ("--plots", "none"),
            )
        ),
        (("--scenario", "offline", "--rate", "1", "--bound", "5"), "--scenario offline has no bound"),
        (("--concurrency", "2", "--seed", "1"), "--seed is of a --rate, and has no meaning without"),
        (("--arrivals", "constant"), "--arrivals is of a --rate"),
        (("--policy", "none"), "policy: no policy 'none'; there are fcfs, "),
        (("--loadgen",), "--loadgen is of a --scenario"),
        (("--duration", "5"), "--duration is of a --scenario"),
        (("--concurrency", "1"), "MissingScalar: scalar 'factor' has no value: --scalar factor=..."),
        (("--scalar", "factr=2"), "--scalar factr: there is no such scalar, only factor"),
        (
            ("--client", "ann", "--server", "tcp://127.0.0.1:1"),
            "--client is of a pool, and has no meaning with --server",
        ),
    ],
)
def test_a_wrong_load_is_an_error_in_one_line(task_file: Path, arguments: tuple[str, ...], message: str) -> None:
    ended = bench(str(task_file), *arguments)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("option", ["--limit", "--window", "--duration", "--bound"])
@pytest.mark.parametrize("time", ["nan", "inf", "1e300", "-1", "0"])
def test_a_time_is_positive_finite_and_within_reason(task_file: Path, option: str, time: str) -> None:
    ended = bench(str(task_file), option, time)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"Invalid value for '{option}'" in ended.stderr


@pytest.mark.full
def test_a_trace_given_inputs_and_a_page_with_plots(task_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, inputs, page = tmp_path / "trace.csv", tmp_path / "inputs.json", tmp_path / "page.html"
    trace.write_text("".join(f"{number / 100}\n" for number in range(20)))
    (name,) = (buffer.name for buffer in scale_task().inputs)
    (shape,) = (buffer.shape for buffer in scale_task().inputs)
    inputs.write_text(json.dumps({name: np.ones(shape).tolist()}))
    own = ("--scalar", "factor=3", "--trace", str(trace), "--inputs", str(inputs))
    (found,) = measured(str(task_file), *own, "--html", str(page), "--plots", str(tmp_path / "plots"))
    assert (found["load"], found["requests"], found["errors"]) == ("trace trace.csv", 20, {})
    assert 0 < found["utilisation"] < 1
    assert "trace trace.csv" in page.read_text()
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"latencies.png", "rates.png"}


def test_a_folder_of_plots_that_cannot_be_made_costs_no_measurement(task_file: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = bench(str(task_file), "--scalar", "factor=3", "--plots", "/proc/x")
    told = "InvalidRequest: --plots /proc/x: this folder cannot be made: No such file or directory"
    assert (ended.returncode, ended.stdout, ended.stderr.splitlines()) == (1, "", [told])


def test_a_page_replaces_no_input_and_no_plot(task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "its_source.py"
    module.write_text("def make(): pass\nclass Policy: pass\n")
    plots = tmp_path / "plots"
    plots.mkdir()
    for own in (
        ("its_source:make", "--html", "its_source.py"),
        (str(task_file), "--policy", "its_source:Policy", "--html", "its_source.py"),
        (str(task_file), "--plots", str(plots), "--html", str(plots / "rates.png")),
    ):
        ended = bench(*own)
        assert ended.returncode == 1
        assert "would be overwritten" in ended.stderr or "--plots has a plot of this name" in ended.stderr
    assert module.read_text().startswith("def make")


def test_a_seed_without_random_arrivals_is_refused(task_file: Path) -> None:
    ended = bench(str(task_file), "--rate", "10", "--arrivals", "constant", "--seed", "3")
    assert (ended.returncode, "--seed is of random arrivals" in ended.stderr) == (1, True)


@pytest.mark.full
def test_inputs_that_the_function_does_not_take(task_file: Path, tmp_path: Path) -> None:
    for text, said in (('{"z": [1]}', "there is no input 'z'"), ("[1]", "no object"), ("{", "has no inputs")):
        inputs = tmp_path / "inputs.json"
        inputs.write_text(text)
        ended = bench(str(task_file), "--scalar", "factor=3", "--inputs", str(inputs))
        assert (ended.returncode, ended.stderr.startswith("InvalidRequest: ")) == (1, True)
        assert said in ended.stderr


def test_a_scenario_of_mlperf_names_the_rules_that_a_short_run_breaks(task_file: Path) -> None:
    own = ("--scalar", "factor=3")
    ended = bench(str(task_file), *own, "--scenario", "single-stream", "--duration", "0.5")
    assert ended.returncode == 0, ended.stderr
    assert "MLPerf single-stream by KaaS: " in ended.stdout
    assert re.search(r": not valid\n  a run takes 600 s or more, not [\d.]+ s\n", ended.stdout), ended.stdout
    ended = bench(str(task_file), *own, "--scenario", "server")
    assert ended.stderr.splitlines()[-1] == "InvalidRequest: the scenario server needs one --rate, as --rate 100"


@pytest.mark.full
def test_mlperfs_own_generator_drives_a_scenario(task_file: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    own = ("--scalar", "factor=3", "--rate", "200")
    ended = bench(str(task_file), *own, "--scenario", "server", "--duration", "0.5", "--loadgen", "--json")
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)
    assert row["driver"].startswith("LoadGen ")
    assert row["requests"] > 10
    assert row["p99_ms"] > 0


@pytest.mark.full
def test_a_page_that_cannot_be_written_costs_neither_time_nor_figures_nor_an_earlier_page(
    task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    own = (str(task_file), "--scalar", "factor=3", "--html")
    ended = bench(*own, "/nowhere/page.html")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == "InvalidRequest: /nowhere/page.html: there is no folder /nowhere"
    page = tmp_path / "page.html"
    page.write_text("earlier")

    def full(file: Path, _: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(Path, "write_bytes", full)
    ended = bench(*own, str(page))
    assert ended.returncode == 1
    assert "concurrency 1" in ended.stdout
    assert ended.stderr.splitlines()[-1] == f"{page}: No space left on device"
    assert page.read_text() == "earlier"


def test_a_page_is_written_though_plots_cannot_be(
    task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "latencies.png")

    monkeypatch.setattr("kaas.bench.report.write_plots", full)
    page = tmp_path / "page.html"
    own = (str(task_file), "--scalar", "factor=3", "--plots", str(tmp_path / "plots"))
    ended = bench(*own, "--html", str(page))
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "latencies.png: No space left on device")
    assert "concurrency 1" in page.read_text()


@pytest.mark.parametrize("form", [(), pytest.param(("--json",), marks=pytest.mark.full)])
def test_a_page_is_written_though_stdout_is_full(task_file: Path, tmp_path: Path, form: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    with Path("/dev/full").open("w") as full:
        ended = bench_by_itself(str(task_file), "--scalar", "factor=3", "--html", str(page), *form, stdout=full)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "stdout: No space left on device")
    assert "concurrency 1" in page.read_text()


@pytest.mark.full  # the client waits some seconds for a server that is gone
def test_a_server_that_dies_in_the_middle(serve: Serve, task_file: Path) -> None:
    server = serve(insecure=True)
    options = ("--server", server.endpoint, "--scalar", "factor=3", "--concurrency", "4,8", "--window", "0.3", "--json")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "kaas.cli", "bench", str(task_file), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        assert "requests/s" in run.stderr.readline()
        os.kill(server.process.pid, signal.SIGKILL)
        stdout, stderr = run.communicate()
    (row,) = json.loads(stdout.splitlines()[-1])
    assert run.returncode == 1, stderr
    assert "not measured: concurrency 8" in stderr  # nothing more is sent to it
    assert (row["state"], row["rate_per_s"], row["p99_ms"]) == ("silent", None, None)
    assert row["requests"] > 0
    assert row["lost"] + sum(row["errors"].values()) >= 4
    assert 0 < row["last_result_s"] < row["seconds"]
