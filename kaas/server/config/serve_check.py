"""Checks of a server's configuration against its environment: impossible sizes, clients without keys, a policy or steps
that do not load. `kaas serve` runs them before it starts, `kaas serve --check` instead of starting."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from kaas.config import Config, Device
from kaas.errors import InvalidConfig, PolicyError
from kaas.scheduling.policy_choice import make_policy, physical
from kaas.server.clients.keys import Keys
from kaas.server.config.serve_config import Settings
from kaas.server.metrics_server import LOOPBACK
from kaas.server.steps.steps import Steps

_log = logging.getLogger(__name__)

SHARED = (
    "kernels of all clients share the memory of each device: allow only code that every client may trust, or set "
    "pool: {isolation: auto}"
)
FENCED = "kernels of a client reach the memory of no other client"
WALLED = "kernels of each client run in processes of its own"
OPEN = "kernels of clients are fenced if all devices are software, else in processes of each client, or shared on Ray"
SENTENCES = {"none": SHARED, "fence": FENCED, "process": WALLED, "auto": OPEN}
UNNAMED = (Device("software"), *(Device("gpu"),) * 63)
"""Stand for the devices of a pool whose configuration names none: of each kind, and as many as a policy may name."""

GIB, DAY_S = 1 << 30, 86400.0
MOST = {
    "limits.requests": 1 << 20,
    "limits.credit_bytes": 1 << 40,
    "limits.frame_bytes": GIB,
    "limits.sessions": 1 << 16,
    "limits.answers_bytes": 1 << 40,
    "limits.answers_s": 30 * DAY_S,
    "limits.lost_s": DAY_S,
    "drain_s": DAY_S,
    "step_processes": 1024,
    "pool.slots": 1024,
    "pool.etask_workers": 1024,
    "pool.queue_limit": 1 << 24,
    "pool.run_limit_s": 30 * DAY_S,
    "pool.start_limit_s": DAY_S,
    "pool.compile_limit_s": DAY_S,
    "pool.cache_bytes": 1 << 44,
    "pool.host_cache_bytes": 1 << 44,
    "pool.whole_object_bytes": 1 << 44,
}
"""Upper bounds: a larger value is a mistake in a unit or a digit."""


def check_sizes(settings: Settings) -> None:
    """Check the upper bounds.

    Raises:
        InvalidConfig
    """
    for field, most in MOST.items():
        value: object = settings
        for name in field.split("."):
            value = getattr(value, name)
        if isinstance(value, int | float) and not value <= most:
            raise InvalidConfig(f"{field} is at most {most:,g}, not {value:,g}", field=field)
    for place, device in settings.pool.placed_devices():
        if device.memory_bytes is not None and device.memory_bytes > 1 << 44:
            field = f"{place}.memory_bytes"
            raise InvalidConfig(f"{field} is at most {1 << 44:,}, not {device.memory_bytes:,}", field=field)


def check_names(settings: Settings) -> None:
    """Check that each client in the configuration has a key. On Ray, `pool.clients` may also name Ray's programs.

    Raises:
        InvalidConfig
    """
    if settings.keys is None:
        return
    folder = Path(settings.keys)
    if not folder.exists():
        message = f"keys: there is no folder {folder}; `kaas keys new NAME --folder {folder}` makes it"
        raise InvalidConfig(message, field="keys")
    known = Keys(folder).names()
    named = {"administrators": settings.administrators}
    named |= {f"etasks.{name}.clients": each.clients or () for name, each in settings.etasks.items()}
    if not settings.ray:
        named["pool.clients"] = tuple(settings.pool.clients)
    for field, names in named.items():
        for name in names:
            if name not in known:
                there = f"{folder} has keys of {', '.join(sorted(known)) or 'no client'}"
                message = f"{field} names {name!r}, which has no key: {there} (`kaas keys new {name}` makes one)"
                raise InvalidConfig(message, field=field)


def check_host(host: str) -> None:
    """Check that a server could listen at an address of this machine. A running server may use its port.

    Raises:
        InvalidConfig
    """
    try:
        _bind(host, 0)
    except OSError as error:
        message = f"listen.host is an address of this machine, and no server can listen at {host}: {error.strerror}"
        raise InvalidConfig(message, field="listen.host") from error


def check_ports(settings: Settings) -> None:
    """Check that no program uses the server's ports.

    Raises:
        InvalidConfig
    """
    for field, host, port in (
        ("listen.port", settings.listen.host, settings.listen.port),
        ("metrics_port", LOOPBACK, settings.metrics_port or 0),
    ):
        try:
            _bind(host, port)
        except OSError as error:
            message = f"{field}: no server can listen at {host}, port {port}: {error.strerror}"
            raise InvalidConfig(message, field=field) from error


def _bind(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ: a port of a closed listener is free
        trial.bind((host, port))


def check_policy(config: Config) -> None:
    """Make the pool's policy once, with the configured devices.

    Raises:
        InvalidConfig: it cannot be made.
    """
    try:
        make_policy(config.policy, physical(config, config.devices or UNNAMED))
    except PolicyError as error:
        raise InvalidConfig(f"pool.policy: {error.message}", field="pool.policy") from error


async def check_all(settings: Settings) -> None:
    """Check all that needs neither a device nor the state nor the port.

    Raises:
        KaasError
    """
    check_names(settings)
    check_host(settings.listen.host)
    check_policy(settings.pool.config(None))
    steps = Steps(settings.steps, settings.step_processes, settings.pool.run_limit_s)
    try:
        await steps.open()
    finally:
        steps.close()


def isolation_of(settings: Settings) -> str:
    """Return the isolation of clients' kernels as a sentence, as far as it is known without a device."""
    config = settings.pool.config(None)
    return SENTENCES[
        config.isolation if config.devices is None else config.resolved(0, ray=bool(settings.ray)).isolation
    ]


def log_isolation(settings: Settings, config: Config) -> None:
    """Log the isolation of clients' kernels in a pool, unless there is one client only: without keys."""
    if settings.keys is not None:
        level = logging.WARNING if config.isolation == "none" else logging.INFO
        _log.log(level, "%s", SENTENCES[config.isolation], extra={"isolation": config.isolation})
