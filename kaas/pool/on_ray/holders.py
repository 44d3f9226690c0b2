"""The holders of constants on devices of a pool on Ray: one for each device and node with eTasks that want some."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kaas.config import Config
from kaas.errors import DeviceUnavailable
from kaas.worker.held.holder_actor import HolderActor
from kaas.worker.held.terms import HolderAddress


class HolderPlace(NamedTuple):
    """Where a holder is. device: its index in the pool. visible: CUDA_VISIBLE_DEVICES of the workers on it."""

    device: int
    node: str
    visible: str


class RayHolders:
    """Starts holders when they are wanted first. They end with this process. Belongs to one event loop."""

    def __init__(self, config: Config) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._devices = config.devices
        self._limit_bytes = sys.maxsize if config.cache_bytes is None else config.cache_bytes
        self._limit_s = config.start_limit_s
        self._holders: dict[HolderPlace, asyncio.Task[HolderAddress]] = {}

    async def holder(self, place: HolderPlace, lost: str) -> HolderAddress:
        """Return the holder at a place.

        lost: the name of one that has given no answer: if it is still the last one there, another takes its place.

        Raises:
            DeviceUnavailable: it does not start.
        """
        starting = self._holders.get(place)
        if starting is not None and starting.done() and (starting.exception() or starting.result().name == lost):
            if not starting.exception():
                ray.kill(starting.result().actor)
            starting = None
        if starting is None:
            starting = self._holders[place] = asyncio.get_running_loop().create_task(self._started(place))
        return await asyncio.shield(starting)

    async def _started(self, place: HolderPlace) -> HolderAddress:
        device = self._devices[place.device]
        here = NodeAffinitySchedulingStrategy(place.node, soft=False)
        decorate: Any = ray.remote  # Ray's types lack this strategy
        actor = decorate(num_cpus=0, scheduling_strategy=here)(HolderActor).remote(
            device, place.visible, self._limit_bytes
        )
        try:
            async with asyncio.timeout(self._limit_s):
                return HolderAddress(await actor.start.remote(), actor, self._limit_s)
        except RayTaskError as error:
            ray.kill(actor)
            raise error.cause from None  # the cause, without Ray's traceback
        except (RayActorError, TimeoutError) as error:
            ray.kill(actor)
            raise DeviceUnavailable(f"no holder of device memory starts: {error or 'it takes too long'}") from error
