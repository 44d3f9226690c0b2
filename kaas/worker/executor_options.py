"""The options that a pool's configuration gives to each executor."""

from __future__ import annotations

from typing import Any

from kaas.config import Config
from kaas.scheduling.policy_choice import client_executors

EXECUTOR_OPTIONS = ("slots", "cache_bytes", "host_cache_bytes", "whole_object_bytes", "run_limit_s", "isolation")
"""The fields of `Config` that are options of `Executor`."""


def executor_options(config: Config) -> dict[str, Any]:
    """Return the options of `Executor`, and `parts`: how many executors divide a device's memory and the caches."""
    options = {name: getattr(config, name) for name in EXECUTOR_OPTIONS}
    parts = client_executors(config)
    if parts is None:
        return {**options, "parts": 1}
    for name in ("cache_bytes", "host_cache_bytes"):
        if options[name] is not None:
            options[name] //= parts
    return {**options, "isolation": "none", "parts": parts}  # an executor has one client, which needs no fence
