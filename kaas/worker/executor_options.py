"""The options that a pool's configuration gives to each executor."""

from __future__ import annotations

from typing import Any

from kaas.config import Config, Device
from kaas.scheduling.policy_choice import client_executors

EXECUTOR_OPTIONS = ("slots", "cache_bytes", "host_cache_bytes", "whole_object_bytes", "run_limit_s", "isolation")
"""The fields of `Config` that are options of `Executor`."""


def executor_options(config: Config, device: Device, *, shares: bool = True) -> dict[str, Any]:
    """Return the options of `Executor` on a device, and two more.

    `parts`: how many processes divide the device's memory and the caches; with executors of one client each, a software
    device has a part more, for the memory that they share. `ahead`: the pool compiles code for software devices on its
    node, and executors there compile none.

    shares: there is memory that executors share.
    """
    options: dict[str, Any] = {name: getattr(config, name) for name in EXECUTOR_OPTIONS}
    options["ahead"] = config.isolation != "none"
    executors = client_executors(config)
    if executors is None:
        return {**options, "parts": 1}
    parts = executors + (shares and device.kind == "software")
    for name in ("cache_bytes", "host_cache_bytes"):
        if options[name] is not None:
            options[name] //= parts
    return {**options, "isolation": "none", "parts": parts}  # an executor has one client, which needs no fence
