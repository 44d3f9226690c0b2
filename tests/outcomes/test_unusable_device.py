"""A server without a usable device does not start, and an operator sees the reason of a later loss everywhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kaas.executor.device.device import gpu_count
from tests.server.conftest import Serve
from tests.server.servers import DEVICE, Server, refused
from tests.timeouts import TIMEOUT_S, until

pytestmark = [pytest.mark.processes, pytest.mark.skipif(gpu_count() > 0, reason="it has a GPU that could be used")]


@pytest.mark.parametrize("devices", [[{"kind": "gpu"}], [DEVICE, {"kind": "gpu"}]])
def test_a_server_with_a_device_that_cannot_be_used_ends_with_the_cause(
    tmp_path: Path, devices: list[dict[str, Any]]
) -> None:
    said = refused(tmp_path, {"pool": {"devices": devices}}).splitlines()[-1]
    assert said.startswith("DeviceUnavailable: device ")
    assert f"device {len(devices) - 1}, of kind 'gpu', cannot be used" in said
    assert "no CUDA driver on this machine" in said


def get(server: Server, path: str) -> tuple[int, str]:
    lines = server.errors.read_text().splitlines()
    (url,) = [line.rpartition("url=")[2].replace("/metrics", path) for line in lines if "url=" in line]
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_an_executor_that_is_killed_shows_with_its_cause(serve: Serve) -> None:
    server = serve({"metrics_port": 0, "administrators": ["boss"]})
    boss, alice = server.speaker("boss"), server.speaker()
    assert get(server, "/readyz")[0] == 200
    assert json.loads(get(server, "/healthz")[1]) == {"live": True, "ready": True, "trouble": [], "disk_full": False}
    executor = boss.ask("status")["devices"][0]["pid"]
    stopped = [pid for pid in server.children() if pid != executor]
    assert not stopped
    os.kill(executor, signal.SIGKILL)
    until(lambda: get(server, "/metrics")[1].count('cause="died"') == 1)
    until(lambda: get(server, "/readyz")[0] == 200)  # another one is up
    samples = get(server, "/metrics")[1].splitlines()
    assert 'kaas_worker_starts_total{device="0"} 2.0' in samples
    assert boss.ask("status")["devices"][0]["pid"] != executor
    assert "pid" not in alice.ask("status")["devices"][0]
    boss.close()
    alice.close()
