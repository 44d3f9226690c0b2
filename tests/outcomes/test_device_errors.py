"""An error of a device describes the kernel's fault, and how its owner finds out more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kaas
from kaas.errors import DeviceLost, Quarantined
from tests.api.conftest import crash_task

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("softgpu", "pool")]


@pytest.fixture(scope="module")
def pool() -> Iterator[None]:
    device = kaas.Device("software", memory_bytes=64 << 20)
    kaas.init(ray=False, name="device-errors", config=kaas.Config(devices=(device,), faults_allowed=0))
    yield
    kaas.shutdown()


def test_errors_of_a_bad_access_and_of_a_quarantine_name_the_remedies() -> None:
    for ended in range(2):
        with pytest.raises(DeviceLost, match=r"illegal access in block .*; SOFTGPU_MEMCHECK=1 or kaas\.Device\("):
            kaas.call(crash_task(), {}, retries=0).result()
        with pytest.raises(Quarantined, match=r"can pardon it: kaas\.pardon\(f\) or `kaas pardon \w+`\. Last: "):
            kaas.call(crash_task(), {}).result()
        assert kaas.pardon(crash_task()), ended
