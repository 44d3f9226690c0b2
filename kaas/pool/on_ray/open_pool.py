"""The parts of a pool's process on Ray, once it is open, and the order of a program's calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kaas.config import Config
from kaas.pool.on_ray.backend import RayBackend, opened_store, references
from kaas.pool.on_ray.keeping import KeptOutputs
from kaas.pool.service import Service
from kaas.pool.session_servers import SessionServers
from kaas.wire import specs

HOLD_S = 1.0
"""Longest wait of a call for earlier calls: a busy machine delays one for a quarter of a second. An earlier call may
have been cancelled before it arrived."""
CALLERS = 4096
"""Number of programs whose position is kept."""


@dataclass(slots=True, eq=False)
class _CallSequence:
    """A program. next: calls with this number or a lower one go on at once."""

    next: int = 0
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    def advance(self, to: int) -> None:
        """Let the waiting calls up to this number go on."""
        self.next = max(self.next, to)
        for number in sorted(
            number for number, turn in self.waiting.items() if number <= self.next and not turn.done()
        ):
            self.waiting[number].set_result(None)


class Sequencer:
    """Restores the order of each program's calls, since Ray's messages to an asyncio actor overtake each other.

    Use an object of this class from one event loop only.
    """

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _CallSequence] = OrderedDict()

    async def take(self, caller: str, number: int) -> None:
        """Wait until all calls with lower numbers have come, or HOLD_S is over.

        A call that then goes on without an await is before all calls with higher numbers.
        """
        program = self._callers.setdefault(caller, _CallSequence())
        self._callers.move_to_end(caller)
        if number > program.next:
            loop = asyncio.get_running_loop()
            turn = program.waiting[number] = loop.create_future()
            limit = loop.call_later(HOLD_S, program.advance, number)
            try:
                await turn
            finally:
                limit.cancel()
                del program.waiting[number]
        program.advance(number + 1)
        if len(self._callers) > CALLERS:
            self._callers.popitem(last=False)


class OpenPool:
    """The parts of an open pool. Use an object of this class from the pool's loop only."""

    def __init__(self, service: Service, backend: RayBackend, own: Any) -> None:
        self.service = service
        self.backend = backend
        self.keeping = KeptOutputs(service, own, references)
        self.session_servers = SessionServers()
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
