"""A server whose devices come with the load: it is ready without any, and the first request brings one."""

from __future__ import annotations

import pytest

import kaas
from tests.outcomes.test_shares import task_of
from tests.outcomes.test_unusable_device import get
from tests.server.conftest import Serve
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes


def test_a_server_without_devices_is_ready_and_a_request_brings_one_that_goes_again(serve: Serve) -> None:
    devices = {"min": 0, "max": 2, "idle_s": 0, "device": {"memory_bytes": 64 << 20}}
    server = serve({"pool": {"devices": devices}, "administrators": ["boss"], "metrics_port": 0})
    assert get(server, "/readyz")[0] == 200
    with kaas.Client(server.endpoint, keys=server.folder / "boss.keys", patience_s=TIMEOUT_S) as boss:

        def states() -> list[str]:
            return sorted(device["state"] for device in boss.status()["devices"])

        assert states() == ["absent", "absent"]
        boss.register(task_of("f"), name="f")
        for _ in range(2):
            assert int(boss.call("f").result()[0]) == 0
            until(lambda: states() == ["absent", "absent"])
        assert get(server, "/readyz")[0] == 200
