"""Each policy in a pool on Ray: kTasks beside eTasks on four software devices, all answers right."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas.scheduling.policies import POLICIES
from tests.api.conftest import DEVICE_BYTES, add_task, numbers, scale_task
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_ray")]

CLIENTS = 2
REQUESTS = 24


@kaas.etask
def doubled(x: Any) -> Any:
    return x * 2, os.getpid()


@pytest.mark.parametrize("policy", spread(reversed(POLICIES), 1))
def test_ktasks_beside_etasks_on_four_devices(policy: str) -> None:
    kaas.init(devices=[kaas.Device("software", DEVICE_BYTES)] * 4, policy=policy, name=f"live-{policy}")
    try:
        weights = kaas.register(add_task(), {"a": numbers(seed=1)})
        x = numbers()
        calls = []
        for number in range(REQUESTS):
            client = f"c{number % CLIENTS}"
            scaled = kaas.invoke(scale_task(), {"x": x}, scalars={"factor": 1.0 + number}, client=client)
            added = kaas.invoke(weights, {"b": x * np.float32(number)}, client=client)
            calls.append((scaled, added, doubled.options(client=client).remote(number)))
        pids = set()
        for number, refs in enumerate(calls):
            scaled, added, (twice, pid) = ray.get(list(refs), timeout=TIMEOUT_S)
            np.testing.assert_array_equal(scaled, x * np.float32(1.0 + number))
            np.testing.assert_array_equal(added, numbers(seed=1) + x * np.float32(number))
            assert twice == 2 * number
            pids.add(pid)
        assert os.getpid() not in pids
    finally:
        kaas.shutdown()
