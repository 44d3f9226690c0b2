"""The pool's part of the configuration of `kaas serve`: its devices, and its clients with their shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from kaas.config import QUEUE_LIMIT, ClientSettings, Config, Device
from kaas.errors import InvalidConfig, InvalidShare
from kaas.pool.core.shares import check_clients
from kaas.profiles import with_profiles
from kaas.scheduling.policy_choice import choose_policy
from kaas.share import Scale, Share

T = TypeVar("T")

CLIENT_FAULTS = 8
"""Default of the devices that requests of one client may end within an hour."""
LEAD_S = 0.005
"""Default of the seconds by which a client may be ahead of others: the time for which these wait beside its flood."""


class StrictSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a file: each field has a name, and there are no others."""


class DeviceSettings(StrictSettings, frozen=True):
    """As `kaas.Device`."""

    kind: str = "software"
    memory_bytes: int | None = None
    memcheck: bool | None = None
    speed: float = 1.0
    sms: int | None = None
    blocks_per_sm: int | None = None


class ScaleSettings(StrictSettings, frozen=True):
    """As `kaas.Scale`."""

    min: int
    max: int
    device: DeviceSettings | None = None
    idle_s: float = 60.0


class ShareSettings(StrictSettings, frozen=True):
    """As `kaas.Share`."""

    sms: float = 1.0
    quota: tuple[float, float] = (0.0, 1.0)
    memory_bytes: int | None = None


class PoolClientSettings(StrictSettings, frozen=True):
    """As `kaas.ClientSettings`."""

    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_share: float | None = None
    max_queued: int | None = None
    share: ShareSettings | None = None

    def granted(self, place: str) -> ClientSettings:
        """Return the checked form. place: of these settings in the file.

        Raises:
            InvalidConfig
        """
        options, share = msgspec.structs.asdict(self), self.share
        if share is not None:
            options["share"] = _checked(f"{place}.share", lambda: Share(share.sms, share.quota, share.memory_bytes))
        return _checked(place, lambda: ClientSettings(**options))


class PoolSettings(StrictSettings, frozen=True):
    """As `kaas.Config`. policy: a name, "module:Class" of the operator's own, or an object with that as `name` and the
    policy's options. The default keeps clients, which do not know each other, within `LEAD_S` of each other."""

    devices: tuple[DeviceSettings, ...] | ScaleSettings | None = None
    policy: str | dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "adaptive", "T": LEAD_S})
    run_limit_s: float = 60.0
    start_limit_s: float = 120.0
    compile_limit_s: float = 120.0
    slots: int = 1
    cache_bytes: int | None = None
    host_cache_bytes: int | None = None
    whole_object_bytes: int = 64 << 20
    isolation: str = "auto"
    client_executors: int | None = None
    clients: dict[str, PoolClientSettings] = {}
    window_s: float = 0.1
    queue_limit: int = QUEUE_LIMIT
    etask_workers: int = 1
    faults_allowed: int = 1
    client_faults_allowed: int | None = CLIENT_FAULTS
    record: str | None = None
    profiles: str | None = None

    def config(self, store: str | None) -> Config:
        """Return the pool's configuration.

        Raises:
            InvalidConfig
        """
        options = msgspec.structs.asdict(self)
        options["policy"] = choose_policy("pool.policy", self.policy)
        devices = tuple(
            _checked(place, partial(Device, **msgspec.structs.asdict(each))) for place, each in self.placed_devices()
        )
        if isinstance(scale := self.devices, ScaleSettings):
            device = devices[0] if devices else None
            options["devices"] = _checked("pool", lambda: Scale(scale.min, scale.max, device, scale.idle_s))
        elif scale is not None:
            options["devices"] = devices
        options["clients"] = self.granted()
        return with_profiles(_checked("pool", lambda: Config(store=store, **options)))

    def placed_devices(self) -> list[tuple[str, DeviceSettings]]:
        """Return the settings of devices, each after its place in the file."""
        if isinstance(self.devices, ScaleSettings):
            return [] if self.devices.device is None else [("pool.devices.device", self.devices.device)]
        return [(f"pool.devices[{index}]", device) for index, device in enumerate(self.devices or ())]

    def granted(self) -> dict[str, ClientSettings]:
        """Return the settings of each client.

        Raises:
            InvalidConfig: also if the leasts of their shares do not fit a device together.
        """
        clients = {name: each.granted(f"pool.clients.{name}") for name, each in self.clients.items()}
        try:
            check_clients(clients, self.slots)
        except InvalidShare as error:
            beyond = next(name for name in clients if f"client {name!r}" == error.of)
            field = f"pool.clients.{beyond}.share"
            raise InvalidConfig(f"{field}: {error.message}", field=field) from error
        return clients


def _checked(place: str, make: Callable[[], T]) -> T:
    """Return a value that is made of the settings at a place of the file.

    Raises:
        InvalidConfig: it cannot be made; with the field's place in the file.
    """
    try:
        return make()
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error.message}", field=f"{place}.{error.field}") from error
    except InvalidShare as error:
        raise InvalidConfig(f"{place}: {error.message}", field=place) from error
