"""What `kaas serve` reads: a YAML file, as settings that are checked; whatever is wrong is an error that names it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import msgspec

from kaas.config import QUEUE_LIMIT, ClientSettings, Config, Device
from kaas.errors import InvalidConfig

PORT = 7600
PLACE = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN = re.compile(r"unknown field `(.*?)`")


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class DeviceSettings(_Settings):
    """As `kaas.Device`."""

    kind: str = "software"
    memory_bytes: int | None = None
    memcheck: bool | None = None
    speed: float = 1.0


class PoolSettings(_Settings):
    """As `kaas.Config`."""

    devices: tuple[DeviceSettings, ...] | None = None
    policy: str = "fcfs"
    run_limit_s: float = 60.0
    start_limit_s: float = 60.0
    slots: int = 1
    cache_bytes: int | None = None
    host_cache_bytes: int | None = None
    whole_object_bytes: int = 64 << 20
    clients: dict[str, ClientSettings] = {}
    queue_limit: int = QUEUE_LIMIT
    faults_allowed: int = 1
    record: str | None = None

    def config(self, store: str | None) -> Config:
        """
        Raises:
            InvalidConfig
        """
        options = {name: getattr(self, name) for name in self.__struct_fields__ if name != "devices"}
        devices = self.devices
        made = None if devices is None else tuple(Device(**msgspec.structs.asdict(device)) for device in devices)
        return Config(devices=made, store=store, **options)


class Listen(_Settings):
    """host: an address of this machine; others than loopback need keys. port: 0 for any that is free."""

    host: str = "127.0.0.1"
    port: int = PORT


class Limits(_Settings):
    """Of each client whose key says nothing else. frame_bytes: of one frame of a message."""

    requests: int = 256
    credit_bytes: int = 256 << 20
    frame_bytes: int = 64 << 20
    sessions: int = 1024
    answers_bytes: int = 16 << 20
    answers_s: float = 600.0
    lost_s: float = 60.0
    requests_per_s: float | None = None
    stored_bytes: int | None = 1 << 30
    library_bytes: int | None = 256 << 20
    device_s_per_minute: float | None = None


class Keys(_Settings):
    """server: file of the server's key pair. clients: folder of the clients' public keys, which others may not read."""

    server: Path
    clients: Path


class Code(_Settings):
    """Which code images clients may bring. any: all. hashes: SHA-256, hex, of libraries or image files. signers: files
    of public keys. providers: whose libraries they may name."""

    any: bool = False
    hashes: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()


class Settings(_Settings):
    """Of one server.

    Fields:
        name: of its pool, under which programs on this machine find it. state: folder of what outlives the server.
        administrators: names of keys that may ask for everything, and have it drain. steps: cTasks around kTasks, each
            "module:function". drain_s: how long a server that ends waits for what is open.
        metrics_port: of the Prometheus endpoint, on loopback; None for none.
    """

    name: str = "kaas"
    listen: Listen = Listen()
    state: Path | None = None
    keys: Keys | None = None
    pool: PoolSettings = PoolSettings()
    limits: Limits = Limits()
    code: Code = Code()
    administrators: tuple[str, ...] = ()
    steps: dict[str, str] = {}
    drain_s: float = 30.0
    metrics_port: int | None = None


def read(path: Path | None, *, insecure: bool = False) -> Settings:
    """The settings of a file, or the defaults; insecure: anybody on this machine may come, with any code.

    Raises:
        InvalidConfig
    """
    settings = Settings() if path is None else parse(_text(path))
    if insecure:
        if settings.keys is not None:
            raise InvalidConfig("a server with keys is not insecure: leave out one of both", field="keys")
        code = msgspec.structs.replace(settings.code, any=True)
        settings = msgspec.structs.replace(settings, code=code)
    elif settings.keys is None:
        raise InvalidConfig(
            "a server has keys (`kaas keys new`), or is told --insecure: then anybody on this machine may use it",
            field="keys",
        )
    _check(settings, insecure)
    return settings


def parse(text: bytes) -> Settings:
    """
    Raises:
        InvalidConfig
    """
    try:
        return msgspec.yaml.decode(text or b"{}", type=Settings)
    except msgspec.ValidationError as error:
        place, unknown = PLACE.search(str(error)), UNKNOWN.search(str(error))
        names = [found.group(1) for found in (place, unknown) if found is not None and found.group(1)]
        raise InvalidConfig(f"configuration of the server: {error}", field=".".join(names)) from error
    except msgspec.DecodeError as error:
        raise InvalidConfig(f"configuration of the server: it is no YAML: {error}", field="") from error
    except InvalidConfig as error:
        raise InvalidConfig(f"configuration of the server: {error.message}", field=error.field) from error


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}", field="config") from error


def _check(settings: Settings, insecure: bool) -> None:
    listen, limits = settings.listen, settings.limits
    if not 0 <= listen.port < 1 << 16:
        raise InvalidConfig(f"listen.port is a port's number, not {listen.port}", field="listen.port")
    try:
        loopback = ip_address(listen.host).is_loopback
    except ValueError as error:
        message = f"listen.host is an IP address of this machine, not {listen.host!r}"
        raise InvalidConfig(message, field="listen.host") from error
    if insecure and not loopback:
        message = f"without keys a server listens on loopback only, not on {listen.host}"
        raise InvalidConfig(message, field="listen.host")
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and not value > 0:
            raise InvalidConfig(f"limits.{name} is a positive number, not {value!r}", field=f"limits.{name}")
    if not settings.drain_s >= 0:
        raise InvalidConfig(f"drain_s is a number of seconds, not {settings.drain_s!r}", field="drain_s")
    settings.pool.config(None)
