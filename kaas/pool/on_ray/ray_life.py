"""What a pool's process on Ray has once it is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaas.config import Config
from kaas.pool.fronts import Fronts
from kaas.pool.on_ray.backend import RayGround, opened_store, references
from kaas.pool.on_ray.keeping import Keeping
from kaas.pool.on_ray.sequencer import Turns
from kaas.pool.service import Service
from kaas.wire import specs


class Life:
    """What a pool's process has once it is open. All methods belong to the pool's loop."""

    def __init__(self, service: Service, ground: RayGround, own: Any) -> None:
        self.service = service
        self.ground = ground
        self.keeping = Keeping(service, own, references)
        self.fronts = Fronts()
        self._turns = Turns()

    async def call(self, message: bytes, refs: Sequence[Any]) -> Any:
        """Run one call of an eTask."""
        header = specs.decode_etask_call(message)
        await self._turns.take(header.caller, header.number)
        etask = await self.ground.etasks.get(header.function)
        ready = None if header.ready else self.ground.readiness.of(refs)
        return await self.service.pool.submit(etask.call(header, message, refs), ready)


async def opened(name: str, config: Config, own: Any, node: str, host: str, again: bool) -> Life:
    """A pool's process in the loop where it lives from now on.

    Raises:
        KaasError
    """
    ground = RayGround(name, config, own, node, host, again)
    service = await Service.open(name, config, ground, opened_store(config.store, name))
    return Life(service, ground, own)
