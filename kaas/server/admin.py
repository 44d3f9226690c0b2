"""Replies about the server's state. A client sees its own data only; an administrator sees all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from time import monotonic
from typing import Any

from kaas.errors import InvalidRequest
from kaas.pool.service import Service
from kaas.server.canary import run_canary
from kaas.server.replies import foreign_text, plain, without_paths
from kaas.server.sessions import ClientSession
from kaas.server.state.set_aside import SetAside
from kaas.server.usage.metering import Meter
from kaas.server.usage.usage import reported as reported_usage
from kaas.wire.connections.zmq_reader import TURN_S
from kaas.wire.status.stats import OutcomeStats, StageStats, TierStats
from kaas.wire.status.status import DeviceStatus

CANARY = b"canary"
READY, ABSENT = ("idle", "busy"), "absent"
TABLES: dict[type, str] = {StageStats: "stages", TierStats: "tiers", OutcomeStats: "outcomes"}

_log = logging.getLogger(__name__)


class Admin:
    """Queries and administration. Use an object of this class from the pool's event loop only.

    Fields:
        draining: True while the server drains. opened: True once its devices have started and its listener is open.
    """

    def __init__(
        self,
        service: Service,
        administrator: Callable[[str], bool],
        drain: Callable[[str], None],
        meter: Meter,
        gone: Callable[[], bool],
        set_aside: Sequence[SetAside] = (),
    ) -> None:
        """administrator: returns True for an administrator. drain: starts draining, with a reason. gone: returns True
        if the state's files are gone. set_aside: the damaged parts of the state."""
        self.draining = self.opened = False
        self._service, self._is_administrator = service, administrator
        self._drain, self._meter, self._gone, self._set_aside = drain, meter, gone, set_aside
        self._turns: dict[str | None, asyncio.Lock] = {}
        self._canary: asyncio.Task[float] | None = None

    def reply(self, session: ClientSession, what: str, frames: Sequence[Any]) -> Any | Coroutine[Any, Any, Any]:
        """Return the reply to a query, or a coroutine that returns it.

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
                return reported_usage(self._meter.usage(None if administrator else client.name))
            case "health":
                if frames and frames[0] == CANARY:
                    return self._health_by_canary(administrator)
                return self.health(administrator)
            case "drain" if administrator:
                _log.warning("an administrator has the server drain", extra={"client": client.name})
                self._drain("an administrator has it drain")  # other clients do not learn its name
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
        """Lift the quarantine of the function that the frame names.

        Raises:
            InvalidRequest
        """
        try:
            function = bytes(frames[0]).decode()
        except (IndexError, UnicodeDecodeError) as error:
            message = "pardon has a frame: the key of a function, as status has it, or of a kTask"
            raise InvalidRequest(message) from error
        pardoned = self._service.pool.quarantine.pardon(function)
        if pardoned:
            _log.warning("a function is pardoned", extra={"client": administrator, "function": function})
        return {"pardoned": pardoned}

    def health(self, causes: bool) -> dict[str, Any]:
        """Return the health. causes: with the reasons why devices are lost, which clients must not see."""
        status = self._service.status()
        states = {device.state for device in status.devices}
        up = not states.isdisjoint(READY) or states == {ABSENT}
        trouble = [] if self.opened else ["it has not started yet"]
        trouble += ["it drains"] if self.draining else []
        for device in status.devices:
            if device.state == "lost" or device.reason:
                why = f": {without_paths(device.reason)}" if causes and device.reason else ""
                trouble.append(f"device {device.index} is {device.state}{why}")
        if status.broken is not None:
            trouble.append(f"its pool is broken: {without_paths(status.broken)}" if causes else "its pool is broken")
        gone = self._gone()
        trouble += ["the files of its state were removed or renamed"] if gone else []
        full = self._meter.reserve.full()
        trouble += ["its disk is full"] if full else []
        able = self._meter.able()
        if not able:
            trouble.append("usage cannot be written down, so that no request is answered")
        if causes and (why := self._meter.unable or self._meter.trouble):
            trouble.append(f"usage is not written down: {without_paths(why)}")
        ready = up and able and not gone and self.opened and not self.draining and status.broken is None
        return {"live": True, "ready": ready, "disk_full": full, "trouble": trouble}

    async def _health_by_canary(self, causes: bool) -> dict[str, Any]:
        """Run a canary, one for all queries that come meanwhile. No client is charged."""
        if self._canary is None:
            self._canary = asyncio.get_running_loop().create_task(run_canary(self._service))
            self._canary.add_done_callback(self._canary_ended)
        seconds = await asyncio.shield(self._canary)
        return {**self.health(causes), "canary_s": seconds}

    def _canary_ended(self, task: asyncio.Task[float]) -> None:
        self._canary = None
        if not task.cancelled() and (error := task.exception()) is not None:  # no caller may be left to get it
            _log.info("the canary failed: %s", error)

    def _status(self, client: str | None) -> dict[str, Any]:
        """Return the status. client: None for an administrator, which sees all clients' data."""
        status = self._service.status()
        administrator = client is None
        devices = [_device(each, administrator) for each in status.devices]
        reply: dict[str, Any] = {**self.health(administrator), "draining": self.draining, "devices": devices}
        reply["isolation"] = status.config.isolation
        shown = without_paths if administrator else foreign_text
        reply["quarantined"] = [
            _entry(each) | {"reason": shown(each.reason)}
            for each in status.quarantined
            if client in (None, each.client)
        ]
        own = f"client {client!r}"
        reply["shares"] = [_entry(each) for each in status.shares if administrator or each.of == own]
        if administrator:
            reply |= {
                "queued": status.queued,
                "running": status.running,
                "functions": list(status.functions),
                "broken": status.broken and without_paths(status.broken),
                "pid": status.pid,
                "usage_trouble": without_paths(self._meter.unable or self._meter.trouble),
                "set_aside": [without_paths(story) for each in self._set_aside for story in each.stories],
            }
        return reply

    async def _stats(self, client: str | None) -> dict[str, Any]:
        """Return the statistics. A thousand functions take 0.1 s, so other work gets its turn in between, and parallel
        queries of one client run one after the other."""
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
    shown: dict[str, Any] = {"index": found.index, "kind": found.kind, "state": found.state}
    if administrator:
        shown["reason"] = without_paths(found.reason)
        if found.info is not None:
            shown |= {"pid": found.info.pid, "node": found.info.node, "name": found.info.device_name}
    return shown


def _entry(row: Any) -> dict[str, Any]:
    return {each.name: plain(getattr(row, each.name)) for each in fields(row)}
