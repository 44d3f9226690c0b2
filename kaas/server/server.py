"""A server of remote clients at a pool, whatever that stands on: its door, and all that is behind it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kaas.pool.observing.metrics import Measured
from kaas.pool.on_processes.objects import HeldObjects
from kaas.pool.service import Service
from kaas.server.admin import Admin
from kaas.server.building.served import ETaskPool, ServedETasks
from kaas.server.config.serve_config import Settings
from kaas.server.metrics import MetricsServer
from kaas.server.peers.keys import Keys
from kaas.server.peers.listener import ServerListener
from kaas.server.session_manager import KeptLimits, SessionManager
from kaas.server.state.client_store import ClientStore
from kaas.server.steps.steps import Steps
from kaas.server.usage.metering import Meter
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol

SWITCH_S = 0.0005
"""How long another thread, which looks into a client's code say, may keep this one from its messages."""
LAST_WORDS_S = 1.0
"""How long answers may still go out when the server ends."""

_log = logging.getLogger(__name__)


class Server:
    """Belongs to the pool's event loop.

    Fields:
        endpoint: where it listens, once it is open.
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
        """objects: where clients' values are held. folder: of what outlives the server.

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
        self._holdings = ClientStore(
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
        limits = settings.limits
        keeping = KeptLimits(limits.sessions, limits.lost_s, limits.answers_bytes, limits.answers_s)
        slow_s = settings.log.slow_request_s
        self._manager = SessionManager(service, self._holdings, self._meter, steps, self._limits, keeping, slow_s)
        self._admin = self._manager.admin = Admin(
            service, self._administrator, self.drain, self._meter, (self._meter.aside, self._holdings.aside)
        )

    def _limits(self, client: str) -> protocol.Limits:
        """Quotas of its key, or else the server's for all."""
        key = None if self._keys is None else self._keys.named(client)
        limits = self._settings.limits
        quotas = limits.granted(Quotas() if key is None else key.quotas)
        self._meter.grant(client, quotas)
        return limits.told(quotas)

    def _administrator(self, client: str) -> bool:
        key = None if self._keys is None else self._keys.named(client)
        return client in self._settings.administrators or (key is not None and key.administrator)

    def _keys_changed(self) -> None:
        """A client that gets the name of a revoked one is not let in before that one's things are gone."""
        self._manager.kept_out = self._kept_out()
        task = asyncio.get_running_loop().create_task(self._settle_tenants())
        self._settling.add(task)
        task.add_done_callback(self._settled)

    def _kept_out(self) -> set[str]:
        """Names under which something was left that is not for the client that has the name now."""
        assert self._keys is not None, "it has keys that change"
        return self._holdings.tenants.changed(self._keys.tenants(), self._keys.purged())

    async def _settle_tenants(self) -> None:
        """
        Raises:
            KaasError
        """
        if self._keys is None:
            return
        async with self._settle_turn:
            names, now = self._kept_out(), self._keys.tenants()
            if left := sorted(filter(self._holdings.has, names)):
                _log.warning("what revoked clients have left is removed: %s", ", ".join(left))
            await self._manager.retire(names)
            self._holdings.tenants.settle(now, names)
            self._manager.kept_out = self._kept_out()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("what revoked clients have left cannot be removed; their names stay shut: %s", error)

    async def open(self) -> None:
        """
        Raises:
            KaasError: it cannot be.
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
        self._meter.open()  # another server may have it; then this one has started nothing
        closing.callback(self._meter.reserve.close)
        closing.push_async_callback(self._meter.close)
        self._meter.reserve.open()
        await self._steps.open()
        closing.callback(self._holdings.close)
        await self._holdings.open()
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
            queued=2 * settings.limits.requests,  # all that a client may have open, and as much again of small answers
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
        gc.freeze()  # what is there now stays: who collects garbage need not look at it

    def reload(self, settings: Settings) -> None:
        """Take the changes of a configuration that a server can take while it runs, and see which keys there are."""
        before = self._settings
        after = before.reloaded(settings)
        if self._keys is not None and self._keys.refresh():
            self._keys_changed()
        self._settings = after
        self._manager.limits_changed()
        if after.pool.clients != before.pool.clients:
            self._service.pool.regrant(after.pool.granted())
        later = after.differences(settings)
        _log.info("keys, quotas and weights were read again", extra={"need_a_restart": ", ".join(later) or "nothing"})

    def drain(self, reason: str) -> None:
        """It takes no more, and ends once what is open has been answered and received."""
        if not self._admin.draining:
            _log.info("the server drains", extra={"reason": reason, "drain_s": self._settings.drain_s})
        self._admin.draining = True
        self._manager.drain(reason)
        self._leave.set()

    async def left(self) -> None:
        """Until it has drained, or for as long as it may take for that."""
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
        """Whoever still waits is told that it ends."""
        self._manager.close()
        await self._closing.aclose()
        if self._opened:
            _log.info("the server has ended")
        self._opened = False

    def _measured(self) -> Measured:
        refused = {} if self._listener is None else dict(self._listener.refused)
        return replace(self._service.measured(), outcomes=self._meter.outcomes(), refused=refused)

    def _health(self) -> dict[str, Any]:
        """For who is on this machine."""
        return self._admin.health(causes=True)
