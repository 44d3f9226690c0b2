"""A pool without Ray in the foreground, for remote clients: `kaas serve`."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kaas.errors import InvalidConfig
from kaas.pool.metrics import Measured
from kaas.pool.names import Notice, Place
from kaas.pool.process_pool import NODE, Machine, count_gpus, opened_store
from kaas.pool.processes import open_all_files
from kaas.pool.service import Service
from kaas.remote import wire
from kaas.remote.desk import Desk
from kaas.remote.door import RemoteDoor
from kaas.remote.gateway import Gateway, Keeping
from kaas.remote.holdings import Holdings
from kaas.remote.keys import Keys
from kaas.remote.metering import Meter
from kaas.remote.metrics import MetricsServer
from kaas.remote.quotas import Quotas
from kaas.remote.serve_config import Settings
from kaas.remote.steps import Steps

SWITCH_S = 0.0005
"""How long another thread, which looks into a client's code say, may keep this one from its messages."""
LAST_WORDS_S = 1.0
"""How long answers may still go out when the server ends."""


async def serve(settings: Settings, ready: Callable[[str], object]) -> None:
    """From the server's start to its end, by SIGTERM or SIGINT, or when it is told to drain. ready: is told the
    endpoint where it listens; devices may still be starting.

    Raises:
        KaasError: it cannot be.
    """
    open_all_files()
    keys = None if settings.keys is None else Keys(Path(settings.keys))
    config = settings.pool.config(None)
    config = config.resolved(0 if config.devices else count_gpus())
    place = Place(settings.name)
    with _folder(settings) as folder:
        with place.locked():
            if place.running() is not None:
                raise InvalidConfig(f"a pool {settings.name!r} runs on this machine already", field="name")
            machine = Machine(config)
            service = machine.service = await Service.open(settings.name, config, machine, opened_store(config.store))
            notice = place.announce(Notice(service.address, NODE, config.described()))
        try:
            await _Server(settings, keys, service, machine, folder).run(ready)
        finally:
            await service.stop()
            place.withdraw(notice)
            machine.hosts.kill_all()
            await service.clients.answered()
            service.close()


@contextmanager
def _folder(settings: Settings) -> Iterator[Path]:
    """Of what outlives the server, or else one that goes with it."""
    if settings.state is not None:
        yield Path(settings.state)
    else:
        with tempfile.TemporaryDirectory(prefix="kaas-") as folder:
            yield Path(folder)


class _Server:
    def __init__(self, settings: Settings, keys: Keys | None, service: Service, machine: Machine, folder: Path) -> None:
        self._settings, self._keys, self._service = settings, keys, service
        self._leave = asyncio.Event()
        self._meter = Meter(folder)
        self._steps = Steps(settings.steps, settings.step_processes, settings.pool.run_limit_s)
        self._holdings = Holdings(
            folder,
            service.registry,
            machine.objects,
            self._limits,
            settings.code.allowed(),
            settings.steps,
            self._meter.holds,
        )
        limits = settings.limits
        keeping = Keeping(limits.sessions, limits.lost_s, limits.answers_bytes, limits.answers_s)
        self._gateway = Gateway(service, self._holdings, self._meter, self._steps, self._limits, keeping)
        self._desk = self._gateway.desk = Desk(service, self._administrator, self._drain, self._meter)

    def _limits(self, client: str) -> wire.Limits:
        """Quotas of its key, or else the server's for all."""
        key = None if self._keys is None else self._keys.named(client)
        limits = self._settings.limits
        quotas = limits.granted(Quotas() if key is None else key.quotas)
        self._meter.grant(client, quotas)
        return limits.told(quotas)

    def _administrator(self, client: str) -> bool:
        key = None if self._keys is None else self._keys.named(client)
        return client in self._settings.administrators or (key is not None and key.administrator)

    def _drain(self, reason: str) -> None:
        self._desk.draining = True
        self._gateway.drain(reason)
        self._leave.set()

    async def run(self, ready: Callable[[str], object]) -> None:
        """
        Raises:
            KaasError: it cannot be.
        """
        loop = asyncio.get_running_loop()
        settings, keys, metrics = self._settings, self._keys, None
        listen, limits = settings.listen, settings.limits
        self._meter.open()
        await self._holdings.open()
        self._gateway.open()
        receive, server_keys = self._gateway.receive, None if keys is None else keys.server
        # all that a client may have open, and as much again of small answers
        queued = 2 * limits.requests
        door = RemoteDoor(
            loop,
            listen.host,
            listen.port,
            keys,
            server_keys,
            receive,
            frame_bytes=limits.frame_bytes,
            queued=queued,
            connections=limits.sessions,
            gone=self._gateway.gone,
        )
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._drain, f"it got {name.name}")
        try:
            if settings.metrics_port is not None:
                metrics = MetricsServer(loop, self._measured, settings.metrics_port)
                metrics.open()
            sys.setswitchinterval(SWITCH_S)
            gc.freeze()  # what is there now stays: who collects garbage need not look at it
            ready(door.endpoint)
            await self._until_left()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_s):
                    await self._gateway.received()
        finally:
            if metrics is not None:  # a scrape in progress needs this loop
                await loop.run_in_executor(None, metrics.close)
            await self._service.stop()  # whoever still waits has an answer now
            self._gateway.close()
            door.close(LAST_WORDS_S)
            self._steps.close()
            self._holdings.close()
            await self._meter.close()

    def _measured(self) -> Measured:
        return replace(self._service.measured(), outcomes=self._meter.outcomes())

    async def _until_left(self) -> None:
        ends = [asyncio.ensure_future(event.wait()) for event in (self._leave, self._service.stopped)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        self._drain("the pool was shut down")
