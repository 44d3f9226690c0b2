"""How a pool that starts again finds the executors of its earlier process: by their names in Ray."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import ray
from ray.exceptions import RayError

from kaas.wire.messages import Address
from kaas.worker.epochs import Adoption

ADOPTION_LIMIT_S = 5.0
"""How long an executor may take to answer a pool that starts again, before it is ended."""


async def adopt(namespace: str, prefix: str, address: Address) -> list[tuple[Adoption, Any]]:
    """The executors whose names begin so and that answer, with their actors, one for each device in order. The others
    are ended. address: of the pool in its new life."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in actors if each["namespace"] == namespace and each["name"].startswith(prefix)]
    found = await asyncio.gather(*(_adopt(namespace, name, address) for name in names))
    adopted: dict[int, tuple[Adoption, Any]] = {}
    for adoption, actor in filter(None, found):
        if adoption.start.device in adopted:  # one of them was ending
            ray.kill(actor)
        else:
            adopted[adoption.start.device] = adoption, actor
    return [adopted[device] for device in sorted(adopted)]


async def _adopt(namespace: str, name: str, address: Address) -> tuple[Adoption, Any] | None:
    try:
        actor = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None  # it has ended since
    adoption: Adoption | None = None
    with contextlib.suppress(TimeoutError, RayError):  # it has ended, or does not answer
        async with asyncio.timeout(ADOPTION_LIMIT_S):
            adoption = await actor.adopt.remote(address)
    if adoption is None:
        ray.kill(actor)
        return None
    return adoption, actor
