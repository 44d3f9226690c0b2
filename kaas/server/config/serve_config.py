"""The configuration of `kaas serve`: a YAML file as checked settings. Errors name the wrong field."""

from __future__ import annotations

import re
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from kaas.code.providers import folders
from kaas.errors import InvalidConfig, KaasError
from kaas.import_target import check_target
from kaas.ktask.arguments import Buffer
from kaas.near_field import PLACE, UNKNOWN, near_field
from kaas.server.clients.allow import Allowed
from kaas.server.config import settings_file
from kaas.server.config.pool_settings import PoolSettings, StrictSettings
from kaas.server.server_log import LogSettings
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol
from kaas.worker.sandbox import Sandbox, available

PORT = 7600
REPORTED = (
    "requests_per_s",
    "stored_bytes",
    "library_bytes",
    "device_s_per_minute",
    "kernels",
    "task_kernels",
    "build_s_per_minute",
)
DEFAULT_QUOTAS = Quotas(
    stored_bytes=1 << 30, library_bytes=256 << 20, kernels=1 << 16, task_kernels=1 << 13, build_s_per_minute=30.0
)
HINTS = {
    re.compile(r"`object`, got `(bool|str)` - at `\$\.code`"): "`code: {any: true}` takes all code of all clients",
    re.compile(r"`str`, got `int` - at `\$\.code\.\w+\["): "a hash or key that has digits only stands in quotes",
}
"""Advice for common mistakes, by msgspec's error text."""


class ETaskSettings(StrictSettings, frozen=True):
    """A Python function or class of the operator's that has a device to itself (`kaas.server.building.served`).

    Fields:
        function: "module:name". inputs, outputs: dtype and shape by name. before, after: steps around it. retries: how
            often a call may run again when its worker dies. clients: those that may use it; None for all.
    """

    function: str
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    before: str = ""
    after: str = ""
    retries: int = 0
    clients: tuple[str, ...] | None = None


class ListenSettings(StrictSettings, frozen=True):
    """The listener. host: an IP address of this machine; others than loopback need keys. port: 0 for any free port."""

    host: str = "127.0.0.1"
    port: int = PORT


class LimitSettings(StrictSettings, frozen=True):
    """Limits of each client.

    Fields:
        requests: the most open requests, whose reply is not received. credit_bytes: of their inputs and outputs.
        frame_bytes: of one frame of a message. sessions: the most programs, and connections. lost_s: seconds for which
            the requests of a program stay when its connection is broken. answers_bytes, answers_s: of replies that are
            kept for repeats of a request with a key, and seconds for which they are kept.
        quotas: for fields that the client's key does not set. A field in neither has the default here.
    """

    requests: int = 256
    credit_bytes: int = 256 << 20
    frame_bytes: int = 16 << 20
    sessions: int = 1024
    answers_bytes: int = 16 << 20
    answers_s: float = 600.0
    lost_s: float = 60.0
    quotas: Quotas = DEFAULT_QUOTAS

    def granted(self, own: Quotas) -> Quotas:
        """Return the quotas of a client. own: those of its key."""
        given = _set_fields(own)
        if "requests_per_s" in given:
            given.setdefault("burst", None)
        return msgspec.structs.replace(DEFAULT_QUOTAS, **(_set_fields(self.quotas) | given))

    def reported(self, quotas: Quotas) -> protocol.Limits:
        """Return the limits as they are sent to a client."""
        requests = min(self.requests, quotas.concurrent_requests or self.requests)
        limits = {name: getattr(quotas, name) for name in REPORTED}
        return protocol.Limits(requests, self.credit_bytes, self.frame_bytes, **limits)


def _set_fields(quotas: Quotas) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(quotas).items() if value is not None}


class CodeSettings(StrictSettings, frozen=True):
    """The code that clients may send, as `kaas.server.clients.allow.Allowed`.

    Fields:
        any: all code of all clients. hashes: keys of kTasks, SHA-256 in hex. signers: Ed25519 keys in hex, whose
            signatures allow a kTask. libraries: SHA-256 of libraries or of image files, whose kernels clients may
            launch with any arguments. providers: packages whose libraries they may name, likewise. build: True if a
            provider may build a missing library that a client names: that starts a compiler, for minutes.
    """

    any: bool = False
    hashes: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    build: bool = False

    def allowed(self) -> Allowed:
        """Return the checked form.

        Raises:
            InvalidConfig
        """
        try:
            signers = tuple(map(bytes.fromhex, self.signers))
        except ValueError as error:
            raise InvalidConfig(f"code.signers are Ed25519 keys in hex: {error}", field="code.signers") from error
        return Allowed(self.any, frozenset(self.hashes), signers, frozenset(self.providers), frozenset(self.libraries))


class Settings(StrictSettings, frozen=True):
    """The settings of one server.

    Fields:
        name: of its pool, under which programs on this machine find it. state: folder of the state that outlives the
            server, only its user's; None: no state does. keys: folder with its own and its clients' keys (`kaas keys`).
        administrators: names of keys that may see all data and drain the server; a key's file can say so as well.
        ray: for a pool on Ray: the address of a cluster, "auto" for one that runs here, true for one that the server
            starts. ray_without_token: True if the ports of that one, open on all addresses, may need no token.
        steps: cTasks around kTasks, "module:function" by name (`kaas.server.steps`). step_processes: that run them.
        etasks: by the names that clients use; only of a pool on Ray.
        sandbox: executors run in one (`kaas.worker.sandbox`), unless the pool is on Ray or the server insecure.
        drain_s: seconds for which a server that ends waits for open requests.
        metrics_port: of the Prometheus endpoint, on loopback; None for none.
        log: level and format of the log (`kaas.server.server_log`).
    """

    name: str = "kaas"
    ray: bool | str = False
    ray_without_token: bool = False
    listen: ListenSettings = ListenSettings()
    state: str | None = None
    keys: str | None = None
    pool: PoolSettings = PoolSettings()
    limits: LimitSettings = LimitSettings()
    code: CodeSettings = CodeSettings()
    administrators: tuple[str, ...] = ()
    steps: dict[str, str] = msgspec.field(default_factory=dict)
    step_processes: int = 2
    etasks: dict[str, ETaskSettings] = msgspec.field(default_factory=dict)
    sandbox: bool = True
    drain_s: float = 30.0
    metrics_port: int | None = None
    log: LogSettings = LogSettings()

    def reloaded(self, now: Settings) -> Settings:
        """Return these settings with the fields of `now` that can change while a server runs."""
        limits, pool = now.limits, msgspec.structs.replace(self.pool, clients=now.pool.clients)
        own = msgspec.structs.replace(
            self.limits, quotas=limits.quotas, requests=limits.requests, credit_bytes=limits.credit_bytes
        )
        return msgspec.structs.replace(self, limits=own, pool=pool, administrators=now.administrators)

    def differences(self, other: Settings) -> list[str]:
        """Return the names of fields that differ."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]

    def executors_sandbox(self, state: Path) -> Sandbox | None:
        """Return the sandbox of executors of a pool without Ray, None for none. state: the folder.

        Raises:
            InvalidConfig: this Linux has none.
        """
        if self.keys is None or not self.sandbox:
            return None
        if not available():
            message = "this Linux has no Landlock to keep kernels from the keys; `sandbox: false` serves without"
            raise InvalidConfig(message, field="sandbox")
        packages = folders(None if self.code.any else self.code.providers)
        return Sandbox((self.keys, str(state)), packages, programs=self.code.build)


def read(path: Path | None, *, insecure: bool = False) -> Settings:
    """The settings of a file, or the defaults; insecure: all users of this machine may connect, with any code.

    Raises:
        InvalidConfig
    """
    settings = Settings() if path is None else read_file(path)
    if insecure:
        if settings.keys is not None:
            raise InvalidConfig("a server with keys is not insecure: leave out one of both", field="keys")
        code = msgspec.structs.replace(settings.code, any=True)
        settings = msgspec.structs.replace(settings, code=code)
    elif settings.keys is None:
        raise InvalidConfig(
            "a server has keys (`kaas keys new`), or is told --insecure: then every user of this machine may use it",
            field="keys",
        )
    try:
        _check(settings, insecure)
    except InvalidConfig as error:
        line = 0 if path is None else settings_file.line_of(_text(path), error.field)
        where = f"line {line}: " if line else ""
        raise InvalidConfig(f"{where}{error.message}", field=error.field) from error
    return settings


def read_file(path: Path) -> Settings:
    """The settings of a file; paths in it are relative to its folder.

    Raises:
        InvalidConfig
    """
    settings, folder = parse(_text(path)), path.parent

    def there(name: str | None) -> str | None:
        return None if name is None else str(folder / name)

    record, profiles = there(settings.pool.record), there(settings.pool.profiles)
    pool = msgspec.structs.replace(settings.pool, record=record, profiles=profiles)
    return msgspec.structs.replace(settings, state=there(settings.state), keys=there(settings.keys), pool=pool)


def parse(text: bytes) -> Settings:
    """Return the settings of a YAML text.

    Raises:
        InvalidConfig
    """
    try:
        document = settings_file.load(text or b"{}")
    except InvalidConfig as error:
        raise InvalidConfig(f"configuration of the server: {error.message}", field=error.field) from error
    try:
        return _made(document)
    except msgspec.ValidationError as error:
        place, unknown = PLACE.search(str(error)), UNKNOWN.search(str(error))
        where = (
            "" if place is None else settings_file.named_place(document, place.group(1), partial(_fails, str(error)))
        )
        field = ".".join(filter(None, (where, "" if unknown is None else unknown.group(1))))
        near = near_field(Settings, str(error))
        meant = (
            [f"did you mean {near!r}?"] if near else [hint for slip, hint in HINTS.items() if slip.search(str(error))]
        )
        hint = "".join(f"; {each}" for each in meant)
        said = str(error) if place is None else str(error).replace(place.group(1), where)
        line = settings_file.line_of(text, field)
        begin = f"configuration of the server: line {line}: " if line else "configuration of the server: "
        raise InvalidConfig(f"{begin}{said}{hint}", field=field) from error


def _made(document: Any) -> Settings:
    return msgspec.convert(document, Settings, dec_hook=lambda kind, value: kind(value))


def _fails(error: str, document: Any) -> bool:
    """Return True if a document has the same error."""
    try:
        _made(document)
    except msgspec.ValidationError as found:
        return str(found) == error
    return False


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
        if name != "quotas" and not value > 0:
            raise InvalidConfig(f"limits.{name} is a positive number, not {value!r}", field=f"limits.{name}")
    metrics_port = settings.metrics_port
    if metrics_port is not None and not 0 <= metrics_port < 1 << 16:
        raise InvalidConfig(f"metrics_port is a port's number, not {metrics_port}", field="metrics_port")
    if metrics_port and metrics_port == settings.listen.port:
        raise InvalidConfig(f"metrics_port is {metrics_port}, and listen.port too", field="metrics_port")
    if not settings.name:
        raise InvalidConfig("name is that of the pool, and not empty", field="name")
    if not settings.step_processes > 0:
        message = f"step_processes is a positive number, not {settings.step_processes!r}"
        raise InvalidConfig(message, field="step_processes")
    slow_s = settings.log.slow_request_s
    if slow_s is not None and not slow_s > 0:
        message = f"log.slow_request_s is a positive number of seconds or nothing, not {slow_s!r}"
        raise InvalidConfig(message, field="log.slow_request_s")
    if not settings.drain_s >= 0:
        raise InvalidConfig(f"drain_s is a number of seconds, not {settings.drain_s!r}", field="drain_s")
    settings.pool.config(None)
    settings.code.allowed()
    _check_etasks(settings)


def _check_etasks(settings: Settings) -> None:
    if settings.etasks and not settings.ray:
        message = "eTasks need a pool on Ray: ray: true, or the address of a cluster"
        raise InvalidConfig(message, field="etasks")
    for name, each in settings.etasks.items():
        field = f"etasks.{name}"
        check_target(f"{field}.function", each.function)
        for step in filter(None, (each.before, each.after)):
            if step not in settings.steps:
                raise InvalidConfig(f"{field}: there is no step {step!r}", field=field)
        if not each.outputs or each.retries < 0:
            raise InvalidConfig(f"{field} has outputs, and retries from 0 on", field=field)
        for buffer, (dtype, shape) in (*each.inputs.items(), *each.outputs.items()):
            try:
                Buffer(buffer, shape, dtype)
            except KaasError as error:
                raise InvalidConfig(f"{field}: {error.message}", field=field) from error
