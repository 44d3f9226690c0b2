"""A pool over two nodes, one of which ends: the node of some executors, and the node of the pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import kaas
from kaas import errors
from kaas.api.ray_session import POOL_OPTIONS
from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE
from kaas.pool.on_ray.pool_actor import PoolActor
from tests.api.conftest import DEVICE_BYTES, add_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

LARGE = 1 << 18
CONFIG = kaas.Config(devices=(kaas.Device("software", DEVICE_BYTES),) * 2)
HOME = "home_of_the_pool"
"""A resource, so that the pool is on a node that can be taken away: not on the first, which has Ray's own records."""
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


class Nodes:
    """Two nodes with one device each, besides the first node without any; the pool runs on `home`."""

    def __init__(self) -> None:
        first = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args=first)
        self.home = self.add(**{HOME: 1})
        self.other = self.add()

    def add(self, **resources: float) -> Any:
        return self.cluster.add_node(num_cpus=1, resources={SOFTWARE_RESOURCE: 1, **resources})

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes(own_ray: None) -> Iterator[Nodes]:  # noqa: ARG001 - none runs
    made = Nodes()
    ray.init(address=made.cluster.address)
    decorate: Any = ray.remote(PoolActor)
    decorate.options(name="kaas", resources={HOME: 1}, **POOL_OPTIONS).remote("kaas", CONFIG)
    kaas.init()
    yield made
    kaas.shutdown()
    ray.shutdown()
    made.cluster.shutdown()


def spins_on_both() -> list[Any]:
    spins = [kaas.invoke(spin_task(), {}, scalars={"steps": 100_000_000}) for _ in range(10)]
    while kaas.status().running < 2:
        pass
    return spins


def until_all_are_up() -> list[str]:
    """Return the nodes of the executors, by device."""
    while not all(device.info for device in kaas.status().devices):
        pass
    return [device.info.node for device in kaas.status().devices if device.info is not None]


def test_results_and_inputs_cross_nodes(nodes: Nodes) -> None:
    assert set(until_all_are_up()) == {nodes.home.node_id, nodes.other.node_id}
    x = kaas.put(numbers(LARGE))
    doubled = [kaas.invoke(scale_task(LARGE), {"x": x}, scalars={"factor": 2}) for _ in range(4)]
    again = [kaas.invoke(scale_task(LARGE), {"x": value}, scalars={"factor": 2}) for value in doubled]
    for value in ray.get(again, timeout=TIMEOUT_S):
        np.testing.assert_array_equal(value, numbers(LARGE) * np.float32(4))
    assert {entry.device for entry in kaas.stats().outcomes} == {0, 1}


@pytest.mark.full
def test_the_end_of_a_node_ends_only_its_executor(nodes: Nodes) -> None:
    gone = until_all_are_up().index(nodes.other.node_id)
    spins = spins_on_both()
    pool = kaas.status().pid
    nodes.kill(nodes.other)
    assert len({int(value[0]) for value in ray.get(spins, timeout=TIMEOUT_S)}) == 1
    while (status := kaas.status()).devices[gone].state != "starting":
        pass
    assert (status.devices[gone].info, status.pid) == (None, pool)
    nodes.other = nodes.add()
    assert set(until_all_are_up()) == {nodes.home.node_id, nodes.other.node_id}


@pytest.mark.full
def test_the_pool_ends_with_its_node_and_restarts_on_another(nodes: Nodes) -> None:
    function = kaas.register(add_task(), constants={"a": numbers()})
    large = kaas.invoke(scale_task(LARGE), {"x": numbers(LARGE)}, scalars={"factor": 2})
    ray.wait([large])
    kept = until_all_are_up().index(nodes.other.node_id)
    before = kaas.status().devices[kept].info
    spins = spins_on_both()
    nodes.kill(nodes.home)
    nodes.home = nodes.add(**{HOME: 1})
    assert len({int(value[0]) for value in ray.get(spins, timeout=TIMEOUT_S)}) == 1
    assert kaas.status().devices[kept].info == before
    np.testing.assert_array_equal(ray.get(function.remote(b=numbers()), timeout=TIMEOUT_S), numbers() * 2)
    with pytest.raises(errors.ResultLost):
        ray.get(large, timeout=TIMEOUT_S)
    assert set(until_all_are_up()) == {nodes.home.node_id, nodes.other.node_id}
