"""A server from outside: usage, quotas, metrics and traces for clients and operators."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.server.usage.usage_file import read_usage
from kaas.wire import protocol, sent_ktasks
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32).tobytes()
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Server]:
    """One for most of the tests here."""
    steps = {"from_text": "tests.server.steps.functions:from_text"}
    settings = {"administrators": ["boss"], "metrics_port": metrics_port, "steps": steps}
    server = Server(tmp_path_factory.mktemp("observed"), settings)
    yield server
    server.close()


def results(speaker: Speaker, count: int) -> list[protocol.Result]:
    found = []
    for _ in range(count):
        answer, _ = speaker.receive()
        assert isinstance(answer, protocol.Result), answer
        found.append(answer)
    speaker.received([each.number for each in found])
    return found


def test_usage_is_exact_across_a_kill(serve: Serve) -> None:
    server = serve()
    speaker = server.speaker("alice")
    speaker.register(scaled(), "f")
    for number in range(5):
        speaker.invoke("f", ONES, key=f"key {number}")
    results(speaker, 5)
    server.process.kill()
    server.wait()
    speaker.close()
    state = server.folder / "state"
    (flow,) = read_usage(state).by("client")
    assert (flow.client, flow.requests, flow.outcomes) == ("alice", 5, {"succeeded": 5})
    assert (flow.bytes_in, flow.bytes_out, flow.bytes_copied) == (5 * len(ONES), 5 * len(ONES), 10 * len(ONES))
    assert flow.device_ns > 0

    again = serve()
    speaker = again.speaker("alice")
    for number in range(3, 7):  # it knows two of them from before the restart
        speaker.invoke("f", ONES, key=f"key {number}")
    results(speaker, 4)
    told = speaker.ask("usage")
    (now,) = told["flows"]
    assert (now["requests"], now["outcomes"], now["repeats"]) == (7, {"succeeded": 7}, 2)
    assert now["device_ns"] > flow.device_ns
    again.terminate()
    assert again.wait() == 0
    speaker.close()
    shown = CliRunner().invoke(app, ["usage", str(state), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["flows"] == told["flows"]
    table = CliRunner().invoke(app, ["usage", str(state), "--by", "client"]).stdout
    assert "alice" in table
    assert "usage by client" in table


def test_usage_has_all_digits_however_narrow_the_terminal(serve: Serve) -> None:
    server = serve()
    speaker = server.speaker("alice")
    speaker.register(scaled(), "f")
    for _ in range(3):
        speaker.invoke("f", ONES)
    results(speaker, 3)
    speaker.close()
    config = str(server.folder / "kaas.yaml")
    shown = CliRunner().invoke(app, ["usage", "--config", config], env={"COLUMNS": "40"})  # it names the state
    assert shown.exit_code == 0
    assert {"alice", "3", str(3 * len(ONES)), str(6 * len(ONES))} <= {*shown.stdout.split()}


def test_an_unusable_path_is_an_error_of_one_line(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    for arguments, said in (
        (["usage", "--config", str(absent)], "--server"),
        (["keys", "new", "ada", "--folder", "/proc/absent"], "/proc/absent: No such file or directory"),
    ):
        command = [sys.executable, "-m", "kaas.cli", *arguments]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
        assert said in ended.stderr


def test_usage_of_a_server_that_runs(observed: Server) -> None:
    server = observed
    for name in ("alice", "bob"):
        speaker = server.speaker(name)
        speaker.register(scaled(), "f")
        speaker.invoke("f", ONES)
        results(speaker, 1)
        speaker.close()
    seen = {}
    for name in ("alice", "boss"):
        arguments = ["usage", "--server", server.endpoint, "--keys", str(server.folder / f"{name}.keys"), "--json"]
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0, shown.output
        seen[name] = [flow["client"] for flow in json.loads(shown.stdout)["flows"]]
    assert seen == {"alice": ["alice"], "boss": ["alice", "bob"]}


def test_a_clients_libraries_and_objects_are_metered(observed: Server) -> None:
    speaker = observed.speaker()
    speaker.register(scaled(), "f")
    speaker.reply_to(protocol.Done, protocol.Put(speaker.number(), "x", "float32", (WIDTH,)), ONES)
    held = {each["what"]: each for each in speaker.ask("usage")["holdings"]}
    assert held["libraries"]["nbytes"] > 0
    assert held["objects"]["nbytes"] >= len(ONES)
    before = held["objects"]["byte_s"]
    assert {each["what"]: each["byte_s"] for each in speaker.ask("usage")["holdings"]}["objects"] > before
    speaker.reply_to(protocol.Done, protocol.Delete(speaker.number(), "x"))
    assert {each["what"]: each["nbytes"] for each in speaker.ask("usage")["holdings"]}["objects"] == 0
    speaker.close()


def test_a_client_beyond_a_quota_gets_a_retry_delay(serve: Serve) -> None:
    server = serve({"limits": {"quotas": {"requests_per_s": 0.001}}})
    speaker, other = server.speaker("alice"), server.speaker("bob")
    speaker.register(scaled(), "f")
    speaker.invoke("f", ONES)
    results(speaker, 1)
    speaker.invoke("f", ONES)
    answer, _ = speaker.receive()
    assert isinstance(answer, protocol.Failure)
    assert (answer.error, answer.fields["quota"]) == ("QuotaExceeded", "requests_per_s")
    assert answer.retry_s is not None
    assert 900 < answer.retry_s <= 1000
    outcomes = {outcome: count for flow in speaker.ask("usage")["flows"] for outcome, count in flow["outcomes"].items()}
    assert outcomes == {"succeeded": 1, "QuotaExceeded": 1}
    assert other.ask("usage") == {"flows": [], "holdings": []}  # no other client's usage
    speaker.close()
    other.close()


def test_metrics_of_a_server(observed: Server, metrics_port: int) -> None:
    speaker = observed.speaker("boss")
    registered = speaker.register(scaled(), "f")
    speaker.invoke("f", ONES)
    results(speaker, 1)
    speaker.invoke("no such function", ONES)
    speaker.receive()
    chain = protocol.Register(speaker.number(), "chain", before="from_text")
    speaker.reply_to(protocol.Registered, chain, sent_ktasks.encode_task(scaled()))
    speaker.send(protocol.Invoke(speaker.number(), "chain", {"text": protocol.Input(frame=1)}), b"1 " * WIDTH)
    results(speaker, 1)
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["kaas_requests_total", "boss", "succeeded"] == 2
    assert samples["kaas_stage_seconds_count", "before"] == 1
    assert samples["kaas_queue_seconds_count",] >= 1
    assert samples["kaas_stage_seconds_count", "kernels"] >= 1
    assert samples["kaas_cache_bytes", "device"] >= 0
    assert registered.function not in text
    speaker.close()


def test_a_trace_is_continued_and_returned(observed: Server) -> None:
    speaker = observed.speaker("alice")
    speaker.register(scaled(), "f")
    speaker.invoke("f", ONES, trace=f"00-{TRACE}-{SPAN}-01")
    (given,) = results(speaker, 1)
    assert given.trace.startswith(f"00-{TRACE}-")
    assert SPAN not in given.trace
    speaker.invoke("f", ONES, trace="nonsense")
    (replaced,) = results(speaker, 1)
    assert len(replaced.trace) == len(given.trace)
    assert TRACE not in replaced.trace
    speaker.invoke("f", ONES)
    assert results(speaker, 1)[0].trace == ""

    path = observed.folder / "trace.json"
    command = [sys.executable, "-m", "kaas.cli", "trace", "--seconds", "1", "-o", str(path), "--name", observed.name]
    with subprocess.Popen(command, cwd=ROOT) as tracing:
        while tracing.poll() is None:
            speaker.invoke("f", ONES, trace=f"00-{TRACE}-{SPAN}-01")
            (given,) = results(speaker, 1)
    assert tracing.returncode == 0
    shown = requests_of(path)
    assert shown
    assert all((each["trace_id"], each["parent_id"], each["client"]) == (TRACE, SPAN, "alice") for each in shown)
    assert len({each["span_id"] for each in shown}) == len(shown)
    speaker.close()


def requests_of(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event["args"] for event in events if event["ph"] == "X" and event["cat"] == "request"]
