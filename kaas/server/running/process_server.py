"""A pool without Ray in the foreground, for remote clients: `kaas serve`."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kaas.errors import InvalidConfig, KaasError
from kaas.pool.on_processes.names import PoolName, PoolNotice
from kaas.pool.on_processes.process_pool import NODE, Machine, count_gpus, opened_store
from kaas.pool.service import Service
from kaas.server.config.serve_check import check_policy, check_ports, log_isolation
from kaas.server.config.serve_config import Settings
from kaas.server.server import Server
from kaas.worker.processes import open_all_files
from kaas.worker.sandbox import unreadable

_log = logging.getLogger(__name__)


async def serve(
    settings: Settings, ready: Callable[[str], object], reread: Callable[[], Settings] | None = None
) -> None:
    """Run a server until it ends by SIGTERM, SIGINT or a drain command. ready: called with the listener's endpoint;
    the devices have started. reread: returns the current configuration, for SIGHUP.

    Raises:
        KaasError: the server cannot start.
    """
    open_all_files()
    if settings.keys is not None:
        unreadable()  # it holds the keys
    config = settings.pool.config(None)
    config = config.resolved(0 if config.devices else count_gpus())
    check_policy(config)
    place = PoolName(settings.name)
    with state_folder(settings) as folder:
        with place.locked():
            if place.running() is not None:
                raise InvalidConfig(f"name: a pool {settings.name!r} runs on this machine already", field="name")
            check_ports(settings)  # before devices start
            log_isolation(settings, config)
            machine = Machine(config, settings.executors_sandbox(folder))
            service = machine.service = await Service.open(settings.name, config, machine, opened_store(config.store))
            service.served = True
            notice = place.announce(PoolNotice(service.address, NODE, config.described()))
        try:
            await _serve(settings, service, machine, folder, ready, reread or (lambda: settings))
        finally:
            await service.stop()
            place.withdraw(notice)
            machine.hosts.kill_all()
            await service.program_sessions.all_replied()
            service.close()
            machine.objects.close()


async def _serve(
    settings: Settings,
    service: Service,
    machine: Machine,
    folder: Path,
    ready: Callable[[str], object],
    reread: Callable[[], Settings],
) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the server cannot reload yet
    server = Server(settings, service, machine.objects, folder)
    try:
        await server.open()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, server.drain, f"it got {name.name}")
        loop.add_signal_handler(signal.SIGHUP, reload, server.reload, reread)
        ready(server.endpoint)
        await server.left()
    finally:
        await service.stop()  # now all requests have their replies
        await server.close()


def reload(give: Callable[[Settings], object], reread: Callable[[], Settings]) -> None:
    """Read a server's configuration again. A wrong one is logged and changes nothing."""
    try:
        settings = reread()
    except KaasError as error:
        _log.error("the configuration is not read again: %s", error.message)
    else:
        give(settings)


@contextmanager
def state_folder(settings: Settings) -> Iterator[Path]:
    """Give the folder of the state, or else a temporary one."""
    if settings.state is not None:
        yield Path(settings.state)
    else:
        with tempfile.TemporaryDirectory(prefix="kaas-") as folder:
            yield Path(folder)
