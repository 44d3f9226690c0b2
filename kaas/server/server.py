"""The server of remote clients: its listener and all its parts, on a pool of any backend."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kaas.errors import InvalidShare
from kaas.pool.observing.metrics import Measured
from kaas.pool.on_processes.objects import HeldObjects
from kaas.pool.service import Service
from kaas.server.admin import Admin
from kaas.server.building.served import ETaskPool, ServedETasks
from kaas.server.clients.keys import Keys
from kaas.server.clients.listener import ServerListener
from kaas.server.config.serve_config import Settings
from kaas.server.metrics_server import MetricsServer
from kaas.server.session_manager import KeptLimits, SessionManager
from kaas.server.state.client_store import ClientStore
from kaas.server.steps.steps import Steps
from kaas.server.usage.metering import Meter
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol

SWITCH_S = 0.0005
"""Python's switch interval: how long another thread, for example one that checks code, may delay the event loop."""
LAST_WORDS_S = 1.0
"""How long replies may still go out when the server ends."""

_log = logging.getLogger(__name__)


class Server:
    """Connects remote clients with a pool. Use an object of this class from the pool's event loop only.

    Fields:
        endpoint: the address of the listener, once the server is open.
    """

    endpoint: str

    def __init__(
        self,
        settings: Settings,
        service: Service,
        objects: HeldObjects,
        folder: Path,
        etasks: ETaskPool | None = None,
    ) -> None:
        """objects: holds clients' values. folder: the state that outlives the server.

        Raises:
            KaasError
        """
        self._settings, self._service = settings, service
        self._keys = None if settings.keys is None else Keys(Path(settings.keys))
        self._leave = asyncio.Event()
        self._listener: ServerListener | None = None
        self._opened = False
        self._settle_turn = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = AsyncExitStack()
        self._meter = Meter(folder)
        self._steps = steps = Steps(settings.steps, settings.step_processes, settings.pool.run_limit_s)
        self._closing.callback(steps.close)
        self._stores = ClientStore(
            folder,
            service.registry,
            objects,
            self._limits,
            settings.code.allowed(),
            settings.steps,
            self._meter.holds,
            ServedETasks(settings.etasks, etasks),
            self._meter.reserve,
        )
        if service.pool.compilations is not None:
            service.pool.compilations.meter = self._meter
        limits = settings.limits
        keeping = KeptLimits(limits.sessions, limits.lost_s, limits.answers_bytes, limits.answers_s)
        slow_s = settings.log.slow_request_s
        self._manager = SessionManager(service, self._stores, self._meter, steps, self._limits, keeping, slow_s)
        self._admin = self._manager.admin = Admin(
            service,
            self._administrator,
            self.drain,
            self._meter,
            self._stores.gone,
            (self._meter.set_aside, self._stores.set_aside),
        )

    def _limits(self, client: str) -> protocol.Limits:
        """Return the limits of a client: its key's quotas, or else the server's defaults."""
        key = None if self._keys is None else self._keys.named(client)
        limits = self._settings.limits
        quotas = limits.granted(Quotas() if key is None else key.quotas)
        self._meter.grant(client, quotas)
        return limits.reported(quotas)

    def _administrator(self, client: str) -> bool:
        key = None if self._keys is None else self._keys.named(client)
        return client in self._settings.administrators or (key is not None and key.administrator)

    def _keys_changed(self) -> None:
        """Keep a client with the name of a revoked client out until the data of the revoked client is removed."""
        self._manager.kept_out = self._kept_out()
        task = asyncio.get_running_loop().create_task(self._settle_tenants())
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _kept_out(self) -> set[str]:
        """Return the names whose data belongs to an earlier owner of the name."""
        assert self._keys is not None, "it has keys that change"
        return self._stores.tenants.changed(self._keys.tenants(), self._keys.purged())

    async def _settle_tenants(self) -> None:
        """Remove the data of revoked clients.

        Raises:
            KaasError
        """
        if self._keys is None:
            return
        async with self._settle_turn:
            names, now = self._kept_out(), self._keys.tenants()
            if left := sorted(filter(self._stores.has, names)):
                _log.warning("the data of revoked clients is removed: %s", ", ".join(left))
            await self._manager.retire(names)
            for name in names:
                self._service.forget_client(name)
            self._stores.tenants.settle(now, names)
            self._manager.kept_out = self._kept_out()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the data of revoked clients cannot be removed, and their names stay blocked: %s", error)

    async def open(self) -> None:
        """Open the state, the steps and the listener, and wait until the pool has started.

        Raises:
            KaasError: one of them cannot be opened.
        """
        try:
            await self._open(asyncio.get_running_loop())
        except BaseException:
            await self.close()
            raise

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        settings, keys, closing = self._settings, self._keys, self._closing
        if settings.metrics_port is not None:
            metrics = MetricsServer(loop, self._measured, self._health, settings.metrics_port)
            metrics.open()
            _log.info("metrics and health can be had", extra={"url": metrics.url})
            # a scrape in progress needs this loop
            closing.push_async_callback(loop.run_in_executor, None, metrics.close)
        self._meter.open()  # first: it fails if another server uses this folder
        closing.push_async_callback(self._meter.close)
        await self._steps.open()
        closing.callback(self._stores.close)
        await self._stores.open()
        await self._settle_tenants()
        self._manager.open()
        await self._service.started()
        listener = ServerListener(
            loop,
            settings.listen.host,
            settings.listen.port,
            keys,
            None if keys is None else keys.server,
            self._manager.receive,
            frame_bytes=settings.limits.frame_bytes,
            queued=2 * settings.limits.requests,  # a client's open requests, and as many small replies
            waiting_bytes=2 * settings.limits.credit_bytes,  # its requests and, in addition, its other questions
            connections=settings.limits.sessions,
            gone=self._manager.gone,
            changed=self._keys_changed,
        )
        self._listener = listener
        closing.callback(listener.close, LAST_WORDS_S)
        self.endpoint = listener.endpoint
        self._admin.opened = self._opened = True
        _log.info("the server is open", extra={"endpoint": self.endpoint, "insecure": keys is None})
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # these objects stay: the garbage collector need not visit them

    def reload(self, settings: Settings) -> None:
        """Apply the settings that can change while a server runs, and read the keys again."""
        before = self._settings
        after = before.reloaded(settings)
        if after.pool.clients != before.pool.clients:
            try:
                self._service.pool.regrant(after.pool.granted())
            except InvalidShare as error:  # programs of this machine have been promised the same time meanwhile
                _log.error("the configuration is not read again: %s", error.message)
                return
        if self._keys is not None and self._keys.refresh():
            self._keys_changed()
        self._settings = after
        self._manager.limits_changed()
        restart = after.differences(settings)
        _log.info(
            "keys, quotas, weights and shares were read again",
            extra={"need_a_restart": ", ".join(restart) or "nothing"},
        )

    def drain(self, reason: str) -> None:
        """Refuse new requests. The server ends once the replies to open requests have been received."""
        if not self._admin.draining:
            _log.info("the server drains", extra={"reason": reason, "drain_s": self._settings.drain_s})
        self._admin.draining = True
        self._manager.drain(reason)
        self._leave.set()

    async def left(self) -> None:
        """Wait until the server has drained, at most `drain_s` seconds."""
        ends = [asyncio.ensure_future(event.wait()) for event in (self._leave, self._service.stopped)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        self.drain("the pool was shut down")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                await self._manager.received()

    async def close(self) -> None:
        """Fail the requests that still wait, and close all parts."""
        self._manager.close()
        await self._closing.aclose()
        if self._opened:
            _log.info("the server has ended")
        self._opened = False

    def _measured(self) -> Measured:
        refused = {} if self._listener is None else dict(self._listener.refused)
        return replace(self._service.measured(), outcomes=self._meter.outcomes(), refused=refused)

    def _health(self) -> dict[str, Any]:
        """Return the health for processes on this machine, with causes."""
        return self._admin.health(causes=True)
