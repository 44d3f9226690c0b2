"""How a pool that starts again finds the executors of its earlier process: by their names in Ray."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import ray
from ray.exceptions import RayError

from kaas.pool.lives import Adoption
from kaas.pool.transport import Call, Survivor

ADOPTION_LIMIT_S = 2.0
"""How long an executor may take to answer a pool that starts again, before it is ended."""


async def adopt(namespace: str, prefix: str) -> dict[int, tuple[Adoption, Any]]:
    """The executors whose names begin so and that answer, by device, with their actors. The others are ended."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in actors if each["namespace"] == namespace and each["name"].startswith(prefix)]
    found = await asyncio.gather(*(_adopt(namespace, name) for name in names))
    adopted: dict[int, tuple[Adoption, Any]] = {}
    for adoption, actor in filter(None, found):
        if adoption.start.device in adopted:  # one of them was ending
            ray.kill(actor)
        else:
            adopted[adoption.start.device] = adoption, actor
    return adopted


async def _adopt(namespace: str, name: str) -> tuple[Adoption, Any] | None:
    try:
        actor = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None  # it has ended since
    adoption: Adoption | None = None
    with contextlib.suppress(TimeoutError, RayError):  # it has ended, or does not answer
        async with asyncio.timeout(ADOPTION_LIMIT_S):
            adoption = await actor.adopt.remote()
    if adoption is None:
        ray.kill(actor)
        return None
    return adoption, actor


def survivor(adoption: Adoption, left: Any) -> Survivor:
    """An executor as the core sees it. left: the payload of the calls that stand for what it still runs."""
    running = {
        slot: Call(orphan.label, orphan.client, None, 0, payload=left, function=orphan.function)
        for slot, orphan in adoption.running.items()
    }
    return Survivor(adoption.start, adoption.info, running, adoption.cached)
