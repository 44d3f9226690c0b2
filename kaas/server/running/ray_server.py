"""A pool on Ray for remote clients in addition to Ray's programs: `kaas serve`. The server runs in the pool's process,
and restarts with it; this process starts and ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from kaas.api.ray_session import RaySession, open_session, plain
from kaas.api.session import HERE
from kaas.errors import ExecutorDied, InvalidConfig, KaasError, UsageUnavailable
from kaas.pool.executors.registered_etasks import ETasks, etask_spec
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.on_processes.objects import HeldObjects
from kaas.pool.on_ray.backend import RayBackend
from kaas.pool.service import Service
from kaas.server.config.serve_check import check_policy, log_isolation
from kaas.server.config.serve_config import Settings
from kaas.server.running.named_etask import NamedETask, find_all
from kaas.server.running.process_server import reload, state_folder
from kaas.server.server import Server
from kaas.server.server_log import configure
from kaas.server.usage.usage_file import TAKEN
from kaas.wire import specs
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.etask_values import packed, pickled, stored

AUTH_MODE, TOKEN = "RAY_AUTH_MODE", "token"
"""Ray's variable, which Ray sets itself where it needs a token by default, and its value then."""
FREED_S = 30.0
"""Seconds for which a server waits for its folder: a killed server's lock stays until the pool notices its end."""


async def serve(
    settings: Settings, ready: Callable[[str], object], reread: Callable[[], Settings] | None = None
) -> None:
    """As `kaas.server.running.process_server.serve`. A pool, or a Ray, that runs already goes on afterwards.

    Raises:
        KaasError
    """
    session, first = _opened(settings)
    with state_folder(settings) as folder:
        path = tuple(map(os.path.abspath, sys.path))
        leave = _leave()
        try:
            if not await _unless(leave, _find_etasks(settings, session, path)):
                return
            leave.add_done_callback(lambda reason: _drain(session, reason.result()))
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, reload, partial(_reload, session), reread or (lambda: settings))
            opener = partial(open_listener, _settled(settings), folder.absolute(), path)
            served = asyncio.wrap_future(session.pool.serve.remote(session.id, opener).future())
            opened = asyncio.wrap_future(session.pool.endpoint.remote(session.id).future())
            await asyncio.wait((served, opened), return_when=asyncio.FIRST_COMPLETED)
            if not served.done():
                ready(await opened)
            await served
        except KaasError as error:
            raise plain(error) from None
        finally:
            if first:
                session.shut_down()


def _leave() -> asyncio.Future[str]:
    """Return a future that a signal sets to the reason to leave."""
    loop = asyncio.get_running_loop()
    leave: asyncio.Future[str] = loop.create_future()

    def leave_by(name: str) -> None:
        if not leave.done():
            leave.set_result(f"it got {name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave_by, number.name)
    return leave


async def _unless(leave: asyncio.Future[str], work: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine until `leave` is set, which cancels it. Return True if `leave` is not set."""
    doing = asyncio.ensure_future(work)
    await asyncio.wait((doing, leave), return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        await doing
    else:
        doing.cancel()
        with suppress(asyncio.CancelledError):
            await doing
    return not leave.done()


def _opened(settings: Settings) -> tuple[RaySession, bool]:
    """Return the session of the pool, and True if the pool was started for it.

    Raises:
        KaasError
    """
    address = "local" if settings.ray is True else str(settings.ray)
    config = settings.pool.config(None)
    check_policy(config)
    if settings.ray is True and not settings.ray_without_token:
        _refuse_open_ports(os.environ.get(AUTH_MODE, TOKEN))  # before they are open
    with HERE.lock:
        try:
            HERE.session, first = session, _ = open_session(settings.name, config, address, here=True)
        except ConnectionError as error:
            raise InvalidConfig(f"no Ray is to be found at {address!r}: {error}", field="ray") from error
    if settings.ray is True and not settings.ray_without_token and first:
        try:
            _refuse_open_ports(os.environ.get(AUTH_MODE, ""))
        except InvalidConfig:
            session.shut_down()
            raise
    there, here = session.address()
    if there.node != here:
        message = f"pool {settings.name!r} runs on another machine: it can be served there, where its process is"
        raise InvalidConfig(message, field="name")
    log_isolation(settings, session.status().config)
    return session, first


def _refuse_open_ports(mode: str) -> None:
    """Check that Ray's own ports need a token: they are open on all addresses, also if the server listens on loopback.

    Raises:
        InvalidConfig: they need none.
    """
    if mode != TOKEN:
        message = (
            f"a Ray that this server starts has open ports on all of this machine's addresses, and they ask for no "
            f"token, since {AUTH_MODE} is {mode or 'not set'!r}: set it to {TOKEN!r}, or say ray_without_token: true "
            f"where no other user reaches them"
        )
        raise InvalidConfig(message, field="ray")


async def _find_etasks(settings: Settings, session: RaySession, path: Sequence[str]) -> None:
    """Look for the targets of eTasks once, before the listener opens.

    Raises:
        InvalidConfig
    """
    targets = {f"etasks.{name}.function": each.function for name, each in settings.etasks.items()}
    limit_s = settings.pool.start_limit_s
    if not targets:
        return
    try:
        async with asyncio.timeout(limit_s):
            await session.in_own_process(find_all, targets, path)
    except TimeoutError as error:
        message = f"the modules of eTasks take longer than the {limit_s:g} s that a worker may take to start"
        raise InvalidConfig(message, field="etasks") from error
    except ExecutorDied as error:
        raise InvalidConfig(f"the modules of eTasks cannot be imported: {error.message}", field="etasks") from error


def _drain(session: RaySession, reason: str) -> None:
    """Drain the server, also after a restart of the pool."""
    session.register("drain", lambda: session.pool.drain.remote(session.id, reason))


def _reload(session: RaySession, settings: Settings) -> None:
    session.pool.reload.remote(session.id, _settled(settings))


def _settled(settings: Settings) -> Settings:
    """Return settings for all restarts of the server: with a fixed port, and absolute paths."""
    listen, keys = settings.listen, settings.keys
    if not listen.port:
        listen = msgspec.structs.replace(listen, port=_free_port(listen.host))
    return msgspec.structs.replace(settings, listen=listen, keys=None if keys is None else os.path.abspath(keys))


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


# --- in the pool's process


async def open_listener(
    settings: Settings, folder: Path, path: Sequence[str], service: Service, backend: RayBackend
) -> Server:
    """Open a server in the pool's process. path: the places of modules of the starting process.

    Raises:
        KaasError
    """
    configure(settings.log)
    sys.path += [entry for entry in path if entry not in sys.path]  # for the modules of steps

    async def attempt() -> Server:
        server = Server(settings, service, HeldObjects(Inbox()), folder, _RayETaskPool(backend, path))
        await server.open()
        return server

    retrying = AsyncRetrying(
        retry=retry_if_exception(_taken), stop=stop_after_delay(FREED_S), wait=wait_fixed(0.2), reraise=True
    )
    return await retrying(attempt)


def _taken(error: BaseException) -> bool:
    return isinstance(error, UsageUnavailable) and error.fields["reason"] == TAKEN


class _RayETaskPool:
    """The `kaas.server.building.served.ETaskPool` of a pool on Ray."""

    def __init__(self, backend: RayBackend, path: Sequence[str]) -> None:
        self._etasks, self._path = LocalETasks(backend.etasks), path

    def define(self, label: str, target: str, outputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> str:
        return self._etasks.define(label, NamedETask, (target, tuple(outputs)), self._path)

    async def call(
        self, etask: str, client: str, inputs: Mapping[str, Any], deadline_s: float | None, retries: int
    ) -> WorkerCall:
        return await self._etasks.call(etask, client, (inputs,), deadline_s, retries)


class LocalETasks:
    """Defines and calls eTasks in the pool's process. Use an object of this class from the pool's event loop only."""

    def __init__(self, etasks: ETasks) -> None:
        self._etasks = etasks

    def define(self, label: str, target: Any, args: Sequence[Any], path: Sequence[str]) -> str:
        """Define an eTask: a class, and the arguments of its instance. path: further places of modules. Return its
        key."""
        code = pickled((target, tuple(args), {}))
        spec = etask_spec(label, code, path)
        self._etasks.register(specs.encode(spec), code)
        return spec.key

    async def call(
        self, etask: str, client: str, args: Sequence[Any], deadline_s: float | None, retries: int
    ) -> WorkerCall:
        """Return a call for the pool. Its result is the list of buffers that the instance returns."""
        arguments: tuple[list[Any], dict[str, Any]] = (list(args), {})
        parts = packed(arguments)
        refs = () if parts else (await asyncio.to_thread(stored, arguments),)
        header = specs.ETaskCall(etask, client, deadline_s, retries, True, "", parts, "", 0)
        return self._etasks[etask].call(header, specs.encode(header), refs, direct=True)
