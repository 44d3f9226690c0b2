"""Names and resources of KaaS in a Ray cluster."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ray

NAMESPACE = "kaas"
"""The Ray namespace in which pools and their executors have their names."""
SOFTWARE_RESOURCE = "kaas_software_gpu"
"""The Ray resource of nodes with room for software GPUs. If no node declares it, software GPUs reserve nothing."""


def cluster_resources() -> dict[str, float]:
    """Return the resources that all nodes of the cluster declare together, by name."""
    declared: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return declared


def existing(refs: Sequence[Any], enough: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
    """Return `enough` references at most whose objects exist, or whose tasks failed, and all others. Fetch nothing.

    timeout_s: longest wait for `enough` of them.
    """
    done, rest = ray.wait(list(refs), num_returns=enough, timeout=timeout_s, fetch_local=False)
    return done, rest


def started_again() -> bool:
    """Return True if this actor's process replaces one that ended."""
    with warnings.catch_warnings():  # Ray itself uses a deprecated function here
        warnings.simplefilter("ignore")
        again: bool = ray.get_runtime_context().was_current_actor_reconstructed
    return again
