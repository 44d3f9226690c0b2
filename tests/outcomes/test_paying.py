"""The promise: a remote client pays for its time on the devices, also of failed work, and for no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeadlineExceeded, DeviceLost, KaasError, Quarantined, QuotaExceeded
from tests.server.servers import STEPS, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

LIMIT_S = 0.5
DEADLINE_S = 30.0
"""Longer than a run may take, and shorter than a quota's minute."""
ENDLESS = 1 << 60

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(settings: dict[str, Any] | None = None) -> Server:
        servers.append(Server(tmp_path, settings))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def spinning(threads: int = 1) -> kaas.KTask:
    """A kTask that takes as many steps as its scalar; another function for each number of threads."""
    out, steps = kaas.Buffer("out", 1, "uint32"), kaas.Scalar("steps", "i64")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, threads, [kaas.Out(out), steps])], [out])


def crashing(threads: int) -> kaas.KTask:
    out = kaas.Buffer("out", 1, "int32")
    return kaas.KTask([kaas.Kernel(STEPS, "crash", 1, threads, [kaas.Out(out)])], [out])


def client_of(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def device_s(client: kaas.Client) -> float:
    return float(sum(flow["device_ns"] for flow in client.usage()["flows"]) / 1e9)


def pool(**options: Any) -> dict[str, Any]:
    return {"devices": [{"kind": "software", "memory_bytes": 256 << 20}], **options}


def honest(client: kaas.Client) -> None:
    """A neighbour's request has its result."""
    x = np.arange(WIDTH, dtype=np.float32)
    np.testing.assert_array_equal(client.call(client.register(scaled()), {"x": x}).result(TIMEOUT_S), 2 * x)


def test_kernels_that_never_end_use_up_the_quota_of_their_client_and_cost_its_neighbour_nothing(serve: Serve) -> None:
    quotas = {"device_s_per_minute": 1.5 * LIMIT_S}
    server = serve({"pool": pool(run_limit_s=LIMIT_S, client_faults_allowed=None), "limits": {"quotas": quotas}})
    with client_of(server, "alice") as mallory, client_of(server, "bob") as bob:
        errors: list[type[KaasError]] = []
        for threads in (1, 2, 3):  # a changed launch is another function, which no quarantine knows
            endless = mallory.register(spinning(threads))
            with pytest.raises((DeadlineExceeded, QuotaExceeded)) as raised:  # with no deadline, it waits for the quota
                mallory.call(endless, scalars={"steps": ENDLESS}, deadline_s=DEADLINE_S).result(TIMEOUT_S)
            errors.append(raised.type)
        assert errors in ([DeadlineExceeded] * 2 + [QuotaExceeded], [DeadlineExceeded] + [QuotaExceeded] * 2)
        assert raised.value.fields["quota"] == "device_s_per_minute"
        assert device_s(mallory) >= quotas["device_s_per_minute"]
        honest(bob)
        assert device_s(bob) < LIMIT_S


def test_kernels_that_trap_are_charged_and_compiling_too(serve: Serve) -> None:
    server = serve({"pool": pool()})
    with client_of(server, "alice") as mallory:
        function, paid_s = mallory.register(crashing(1)), [0.0]
        for _ in range(2):  # the second time nothing is compiled
            with pytest.raises(DeviceLost):
                mallory.call(function, {}).result(TIMEOUT_S)
            paid_s.append(device_s(mallory))
        assert paid_s[0] < paid_s[1] < paid_s[2]
    with client_of(server, "bob") as bob:
        honest(bob)
        seconds = {row["stage"]: row["total_s"] for row in bob.stats()["stages"]}
        assert seconds["plan"] > 0
        assert device_s(bob) == pytest.approx(seconds["kernels"] + seconds["plan"], abs=1e-6)


def test_a_client_that_ends_devices_with_ever_new_functions_is_stopped_and_its_neighbour_is_not(serve: Serve) -> None:
    server = serve({"pool": pool(client_faults_allowed=2)})
    with client_of(server, "alice") as mallory, client_of(server, "bob") as bob:
        for threads in (1, 2, 3):
            with pytest.raises(DeviceLost):
                mallory.call(mallory.register(crashing(threads)), {}).result(TIMEOUT_S)
        with pytest.raises(Quarantined) as raised:
            mallory.call(mallory.register(crashing(4)), {}, deadline_s=TIMEOUT_S).result(TIMEOUT_S)
        assert (raised.value.client, raised.value.faults) == ("alice", 3)
        assert 0 < raised.value.retry_s <= 3600
        assert "The operator can forget them: `kaas pardon client:alice`. Last: " in raised.value.message
        honest(bob)
