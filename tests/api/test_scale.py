"""A scale on Ray: a device asks Ray for its resource, as an autoscaler sees it, and waits until a node has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import kaas
from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE
from tests.api.conftest import DEVICE_BYTES, spin_task
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.ray

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


class Growing:
    """A cluster whose nodes come and go as an autoscaler's do: the first has no device, each other one has one."""

    def __init__(self) -> None:
        first = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=first)
        self.nodes: list[Any] = [self.add()]

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, resources={SOFTWARE_RESOURCE: 1})


@pytest.fixture
def growing(own_ray: None) -> Iterator[Growing]:  # noqa: ARG001 - none runs
    made = Growing()
    ray.init(address=made.cluster.address)
    device = kaas.Device("software", DEVICE_BYTES)
    kaas.init(config=kaas.Config(devices=kaas.Scale(1, 2, device, idle_s=2.0)))
    yield made
    kaas.shutdown()
    ray.shutdown()
    made.cluster.shutdown()


def states() -> list[str]:
    return [device.state for device in kaas.status().devices]


def free() -> float:
    """Return how many devices Ray has to give."""
    return float(ray.available_resources().get(SOFTWARE_RESOURCE, 0.0))  # type: ignore[no-untyped-call]


def spins(count: int) -> list[Any]:
    return [kaas.invoke(spin_task(), {}, scalars={"steps": 100_000_000}) for _ in range(count)]


def test_a_device_comes_once_a_node_has_it_goes_when_idle_and_is_replaced_when_its_node_dies(growing: Growing) -> None:
    until(lambda: "idle" in states())
    assert "absent" in states()
    calls = spins(60)
    until(lambda: "starting" in states())
    assert free() == 0.0
    growing.nodes.append(growing.add())  # as an autoscaler does on such a demand
    until(lambda: states() == ["busy", "busy"])
    nodes = {device.info.node for device in kaas.status().devices if device.info is not None}
    assert nodes == {node.node_id for node in growing.nodes}
    assert len(ray.get(calls, timeout=TIMEOUT_S)) == 60
    until(lambda: states().count("absent") == 1)
    until(lambda: free() == 1.0)  # what it had reserved is Ray's again
    (used,) = [device.info.node for device in kaas.status().devices if device.info is not None]
    dies = next(node for node in growing.nodes if node.node_id == used)
    call = spins(1)
    growing.cluster.remove_node(dies, allow_graceful=False)
    assert len(ray.get(call, timeout=TIMEOUT_S)) == 1
