"""The parts of a pool's process on Ray, once it is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaas.config import Config
from kaas.pool.on_ray.backend import RayBackend, opened_store, references
from kaas.pool.on_ray.keeping import KeptOutputs
from kaas.pool.on_ray.sequencer import Sequencer
from kaas.pool.service import Service
from kaas.pool.session_listeners import SessionListeners
from kaas.wire import specs


class OpenPool:
    """The parts of an open pool. Use an object of this class from the pool's loop only."""

    def __init__(self, service: Service, backend: RayBackend, own: Any) -> None:
        self.service = service
        self.backend = backend
        self.keeping = KeptOutputs(service, own, references)
        self.session_listeners = SessionListeners()
        self._sequencer = Sequencer()

    async def call(self, message: bytes, refs: Sequence[Any]) -> Any:
        """Run one call of an eTask."""
        header = specs.decode_etask_call(message)
        await self._sequencer.take(header.caller, header.number)
        etask = await self.backend.etasks.get(header.function)
        ready = None if header.ready else self.backend.readiness.of(refs)
        return await self.service.pool.submit(etask.call(header, message, refs), ready)


async def opened(name: str, config: Config, own: Any, node: str, host: str, again: bool) -> OpenPool:
    """Open a pool in the current event loop.

    Raises:
        KaasError: the pool cannot be opened.
    """
    backend = RayBackend(name, config, own, node, host, again)
    service = await Service.open(name, config, backend, opened_store(config.store, name))
    return OpenPool(service, backend, own)
