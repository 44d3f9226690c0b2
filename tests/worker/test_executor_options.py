"""The part of a device that an executor gets."""

from __future__ import annotations

import pytest

from kaas.config import Config, Device
from kaas.worker.executor_options import executor_options

SOFTWARE, GPU = Device("software"), Device("gpu")


@pytest.mark.parametrize(
    ("isolation", "device", "shares", "parts"),
    [
        ("none", SOFTWARE, True, 1),
        ("process", SOFTWARE, True, 4),
        ("process", SOFTWARE, False, 3),
        ("process", GPU, True, 3),
    ],
)
def test_shared_memory_has_a_part_of_its_own(isolation: str, device: Device, shares: bool, parts: int) -> None:
    config = Config(devices=(SOFTWARE, GPU), isolation=isolation, client_executors=3, cache_bytes=1200)
    options = executor_options(config, device, shares=shares)
    assert (options["parts"], options["cache_bytes"]) == (parts, 1200 // parts)
