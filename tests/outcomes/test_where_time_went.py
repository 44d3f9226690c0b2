"""The time of a request can be found, also that of its steps, by the names of clients' functions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from tests.server.servers import ROOT, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

TEXT = np.frombuffer(b"1 " * WIDTH, np.uint8)
STEPS = {name: f"tests.server.steps.functions:{name}" for name in ("from_text", "total")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"steps": STEPS, "log": {"format": "json", "slow_request_s": 1e-6}, "administrators": ["boss"]}
    server = Server(tmp_path_factory.mktemp("time"), settings)
    yield server
    server.close()


@pytest.fixture
def alice(server: Server) -> Iterator[kaas.Client]:
    with kaas.Client(server.endpoint, keys=server.key_of("alice"), patience_s=TIMEOUT_S) as client:
        yield client


def test_steps_show_in_statistics_and_the_trace_by_the_functions_name(
    server: Server, alice: kaas.Client, tmp_path: Path
) -> None:
    function = alice.register(scaled(), name="twice", before="from_text", after="total")
    path = tmp_path / "trace.json"
    command = [sys.executable, "-m", "kaas.cli", "trace", "--seconds", "1", "-o", str(path), "--name", server.name]
    with subprocess.Popen(command, cwd=ROOT) as tracing:
        while tracing.poll() is None:
            function.call(text=TEXT).result()
    assert tracing.returncode == 0
    stages = {row["stage"]: row for row in alice.stats()["stages"] if row["function"] == "twice"}
    assert {"before", "after", "kernels", "queue"} <= stages.keys()
    assert stages["before"]["total_s"] > 0
    assert stages["before"]["count"] == stages["after"]["count"]
    events = json.loads(path.read_text())["traceEvents"]
    steps = {event["name"] for event in events if event.get("cat") == "step"}
    assert steps == {"before: from_text", "after: total"}
    assert {event["name"] for event in events if event.get("cat") == "request"} == {"twice"}


def test_functions_of_one_ktask_are_counted_separately(alice: kaas.Client) -> None:
    ones = np.ones(WIDTH, np.float32)
    for name in ("left", "right", "right"):
        alice.register(scaled(3.0), name=name).call(x=ones).result()
    for constant in (ones, 2 * ones):
        alice.register(scaled(3.0), {"x": constant}).call().result()
    flows = {flow["function"]: flow["requests"] for flow in alice.usage()["flows"]}
    assert (flows["left"], flows["right"]) == (1, 2)
    label = scaled(3.0).label
    assert [count for name, count in flows.items() if name.startswith(f"{label}/")] == [1, 1]


def test_a_slow_request_is_logged_with_the_times_of_its_stages(server: Server, alice: kaas.Client) -> None:
    function = alice.register(scaled(5.0), name="slow", before="from_text")
    function.call(text=TEXT).result()

    def slow() -> list[dict[str, Any]]:
        lines = map(json.loads, server.errors.read_text().splitlines())
        return [each for each in lines if each["event"] == "a slow request" and each["function"] == "slow"]

    until(lambda: bool(slow()))
    (told,) = slow()
    assert (told["client"], told["outcome"]) == ("alice", "succeeded")
    assert told["seconds"] >= told["before_s"] + told["compile_s"] + told["kernels_s"]
    assert min(told["before_s"], told["compile_s"], told["kernels_s"]) > 0
