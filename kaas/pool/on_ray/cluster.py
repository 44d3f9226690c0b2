"""KaaS in a Ray cluster: its names and its resources. A program needs no more of a pool on Ray than this."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import ray

NAMESPACE = "kaas"
"""The Ray namespace in which pools and their executors have their names."""
SOFTWARE_RESOURCE = "kaas_software_gpu"
"""The Ray resource that a node with room for software GPUs declares; where none does, they run without reserving."""


def cluster_resources() -> dict[str, float]:
    """Return the resources that all nodes of the cluster declare together, by name."""
    declared: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return declared


def existing(refs: Sequence[Any], enough: int, timeout_s: float) -> tuple[list[Any], list[Any]]:
    """Return the references whose objects exist, or whose tasks failed, and the others. Nothing is fetched."""
    done, rest = ray.wait(list(refs), num_returns=enough, timeout=timeout_s, fetch_local=False)
    return done, rest


def started_again() -> bool:
    """Return True if this actor's process replaces one that ended."""
    with warnings.catch_warnings():  # Ray's own use of what it deprecates
        warnings.simplefilter("ignore")
        again: bool = ray.get_runtime_context().was_current_actor_reconstructed
    return again
