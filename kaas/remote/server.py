"""A pool without Ray in the foreground, for remote clients: `kaas serve`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from kaas.errors import InvalidConfig
from kaas.pool.names import Notice, Place
from kaas.pool.process_pool import NODE, Machine, count_gpus, opened_store
from kaas.pool.processes import open_all_files
from kaas.pool.service import Service
from kaas.remote import wire
from kaas.remote.desk import Desk
from kaas.remote.door import RemoteDoor
from kaas.remote.gateway import Gateway, Keeping
from kaas.remote.plain_holdings import PlainHoldings
from kaas.remote.serve_config import Settings

LAST_WORDS_S = 1.0
"""How long answers may still go out when the server ends."""


async def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """From the server's start to its end, by SIGTERM or SIGINT, or once it is drained. ready: is told the endpoint
    where it listens; devices may still be starting.

    Raises:
        KaasError: it cannot be.
    """
    open_all_files()
    config = settings.pool.config(None)
    config = config.resolved(0 if config.devices else count_gpus())
    place = Place(settings.name)
    with place.locked():
        if place.running() is not None:
            raise InvalidConfig(f"a pool {settings.name!r} runs on this machine already", field="name")
        machine = Machine(config)
        service = machine.service = await Service.open(settings.name, config, machine, opened_store(config.store))
        notice = place.announce(Notice(service.address, NODE, config.described()))
    try:
        await _Server(settings, service).run(ready)
    finally:
        await service.stop()
        place.withdraw(notice)
        machine.hosts.kill_all()
        await service.clients.answered()
        service.close()


class _Server:
    def __init__(self, settings: Settings, service: Service) -> None:
        self._settings, self._service = settings, service
        self._leave = asyncio.Event()
        limits = settings.limits
        keeping = Keeping(limits.sessions, limits.lost_s, limits.answers_bytes, limits.answers_s)
        self._gateway = Gateway(service, PlainHoldings(service), self._limits, keeping)
        self._desk = self._gateway.desk = Desk(service, settings.administrators, self._drain)

    def _limits(self, client: str) -> wire.Limits:  # noqa: ARG002
        limits = self._settings.limits
        return wire.Limits(limits.requests, limits.credit_bytes, limits.frame_bytes)

    def _drain(self, reason: str) -> None:
        self._desk.draining = True
        self._gateway.drain(reason)
        self._leave.set()

    async def run(self, ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        listen, limits = self._settings.listen, self._settings.limits
        door = RemoteDoor(
            loop, listen.host, listen.port, None, None, self._gateway.receive, frame_bytes=limits.frame_bytes
        )
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._drain, f"it got {name.name}")
        try:
            ready(door.endpoint)
            stopped = asyncio.ensure_future(self._service.stopped.wait())
            left = asyncio.ensure_future(self._leave.wait())
            await asyncio.wait([stopped, left], return_when=asyncio.FIRST_COMPLETED)
            self._drain("the pool was shut down")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_s):
                    await self._gateway.received()
        finally:
            await self._service.stop()
            self._gateway.close()
            door.close(LAST_WORDS_S)
