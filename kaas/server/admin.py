"""What a server says of itself when a client asks: of that client what concerns it, and of others nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from time import monotonic
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.service import Service
from kaas.server.canary import sing
from kaas.server.replies import plain, without_paths
from kaas.server.sessions import ClientSession
from kaas.server.state.set_aside import SetAside
from kaas.server.usage.metering import Meter
from kaas.server.usage.usage import told as usage_told
from kaas.wire.connections.zmq_reader import TURN_S
from kaas.wire.status.stats import OutcomeStats, StageStats, TierStats
from kaas.wire.status.status import DeviceStatus

CANARY = b"canary"
READY = ("idle", "busy")
TABLES: dict[type, str] = {StageStats: "stages", TierStats: "tiers", OutcomeStats: "outcomes"}

_log = logging.getLogger(__name__)


class Admin:
    """Belongs to the pool's event loop.

    Fields:
        draining: of the server. opened: its devices have started, and its door is open.
    """

    def __init__(
        self,
        service: Service,
        administrator: Callable[[str], bool],
        drain: Callable[[str], None],
        meter: Meter,
        aside: Sequence[SetAside] = (),
    ) -> None:
        """administrator: whether a client is one. drain: begins, with a reason. aside: what was damaged of the
        state."""
        self.draining = self.opened = False
        self._service, self._is_administrator = service, administrator
        self._drain, self._meter, self._aside = drain, meter, aside
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._singing: asyncio.Task[float] | None = None

    def told(self, session: ClientSession, what: str, frames: Sequence[Any]) -> Any | Coroutine[Any, Any, Any]:
        """
        Raises:
            KaasError
        """
        client = session.client
        administrator = self._is_administrator(client.name)
        match what:
            case "status":
                own = {
                    "open": client.requests.count,
                    "credit_bytes": client.requests.nbytes,
                    "sessions": len(client.sessions),
                    "administrator": administrator,
                }
                return {**self._status(None if administrator else client.name), **own}
            case "stats":
                return self._stats(None if administrator else client.name)
            case "usage":
                return usage_told(self._meter.usage(None if administrator else client.name))
            case "health":
                if frames and frames[0] == CANARY:
                    return self._health_by_canary(administrator)
                return self.health(administrator)
            case "drain" if administrator:
                _log.warning("an administrator has the server drain", extra={"client": client.name})
                self._drain("an administrator has it drain")  # who, is no business of other clients'
                self.draining = True
                return {"draining": True}
            case "drain":
                raise InvalidRequest(f"only an administrator may have this server drain, and {client.name!r} is none")
            case "pardon" if administrator:
                return self._pardon(client.name, frames)
            case "pardon":
                raise InvalidRequest(f"only an administrator may pardon a function, and {client.name!r} is none")
            case _:
                raise InvalidRequest(f"this server cannot be asked for {what!r}")

    def _pardon(self, administrator: str, frames: Sequence[Any]) -> dict[str, Any]:
        """
        Raises:
            InvalidRequest
        """
        try:
            function = bytes(frames[0]).decode()
        except (IndexError, UnicodeDecodeError) as error:
            message = "pardon has a frame: the key of a function, as status has it, or of a kTask"
            raise InvalidRequest(message) from error
        pardoned = self._service.pool.pardon(function)
        if pardoned:
            _log.warning("a function is pardoned", extra={"client": administrator, "function": function})
        return {"pardoned": pardoned}

    def health(self, causes: bool) -> dict[str, Any]:
        """causes: whether it says why devices are lost, which is no business of any client's."""
        status = self._service.status()
        up = any(device.state in READY for device in status.devices)
        trouble = [] if self.opened else ["it has not started yet"]
        trouble += ["it drains"] if self.draining else []
        for device in status.devices:
            if device.state == "lost" or device.reason:
                why = f": {without_paths(device.reason)}" if causes and device.reason else ""
                trouble.append(f"device {device.index} is {device.state}{why}")
        if status.broken is not None:
            trouble.append(f"its pool is broken: {without_paths(status.broken)}" if causes else "its pool is broken")
        full = self._meter.reserve.full()
        trouble += ["its disk is full"] if full else []
        able = self._meter.able()
        if not able:
            trouble.append("usage cannot be written down, so that no request is answered")
        if causes and (why := self._meter.unable or self._meter.trouble):
            trouble.append(f"usage is not written down: {without_paths(why)}")
        ready = up and able and self.opened and not self.draining and status.broken is None
        return {"live": True, "ready": ready, "disk_full": full, "trouble": trouble}

    async def _health_by_canary(self, causes: bool) -> dict[str, Any]:
        """One at a time, of all who ask meanwhile: it is charged to nobody."""
        if self._singing is None:
            self._singing = asyncio.get_running_loop().create_task(sing(self._service))
            self._singing.add_done_callback(self._sung)
        seconds = await asyncio.shield(self._singing)
        return {**self.health(causes), "canary_s": seconds}

    def _sung(self, singing: asyncio.Task[float]) -> None:
        self._singing = None
        if not singing.cancelled() and (error := singing.exception()) is not None:  # its callers may have gone
            _log.info("the canary did not come back: %s", error)

    def _status(self, client: str | None) -> dict[str, Any]:
        """client: None for an administrator, who sees everybody's."""
        status = self._service.status()
        administrator = client is None
        devices = [_device(each, administrator) for each in status.devices]
        told: dict[str, Any] = {**self.health(administrator), "draining": self.draining, "devices": devices}
        told["quarantined"] = [
            _entry(each) | {"reason": without_paths(each.reason)}
            for each in status.quarantined
            if client in (None, each.client)
        ]
        if administrator:
            told |= {
                "queued": status.queued,
                "running": status.running,
                "functions": list(status.functions),
                "broken": status.broken and without_paths(status.broken),
                "pid": status.pid,
                "usage_trouble": without_paths(self._meter.unable or self._meter.trouble),
                "set_aside": [without_paths(story) for each in self._aside for story in each.stories],
            }
        return told

    async def _stats(self, client: str | None) -> dict[str, Any]:
        """Of a thousand functions they take a tenth of a second, so others have their turn in between; and whoever asks
        several times at once has one."""
        tables: dict[str, list[Any]] = {name: [] for name in TABLES.values()}
        async with self._turns.setdefault(client, asyncio.Lock()):
            since_s, rows = self._service.pool.reports.rows_of(client)
            ends_s = monotonic() + TURN_S
            for row in rows:
                tables[TABLES[type(row)]].append(_entry(row))
                if monotonic() >= ends_s:
                    await asyncio.sleep(0)
                    ends_s = monotonic() + TURN_S
        return {"since_s": since_s, **tables}


def _device(found: DeviceStatus, administrator: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"index": found.index, "kind": found.kind, "state": found.state}
    if administrator:
        told["reason"] = without_paths(found.reason)
        if found.info is not None:
            told |= {"pid": found.info.pid, "node": found.info.node, "name": found.info.device_name}
    return told


def _entry(row: Any) -> dict[str, Any]:
    return {each.name: plain(getattr(row, each.name)) for each in fields(row)}
