"""`Share`, the part of each device that requests may have, and `ProfilePoint`, what a function does with one.

`Scale`: how many devices a pool has, by its load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidConfig, InvalidShare

LEAST = 0.001
"""The smallest part of the SMs, and the smallest most of the time."""
LEAST_SLO_S = 1e-6
"""The shortest latency that can be promised, in seconds."""
MOST_POINTS = 4096
"""The most points of a profile."""
MOST_BYTES = 1 << 60
"""Of the memory of a share."""
MOST_DEVICES = 4096
"""Of a `Scale`."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of each device, in space and in time (FaST-GShare, section 3.3). It bounds what runs; nothing stays idle.

    Args:
        sms: the part of the streaming multiprocessors, from 0.001 to 1. It is rounded up to partitions that the device
            can make: `kaas.status()` says which.
        quota: the least and the most part of the time, from 0 to 1. In each window of `Config.window_s` the share has
            its least, if it has requests, and never more than its most, in both cases but for the request that runs
            when the limit is reached. Time that others leave goes to those that can use it, up to their most.
        memory_bytes: of each device that the objects of its requests (constants, and inputs that are kept) have once no
            request reads them; None: as many as there is room for. A request that reads more runs all the same.

    Raises:
        InvalidShare: a part is none.
    """

    sms: float = 1.0
    quota: tuple[float, float] = (0.0, 1.0)
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _require_part("sms", self.sms, LEAST)
        quota = self.quota
        if not isinstance(quota, tuple | list) or len(quota) != 2:
            raise InvalidShare(f"quota is the least and the most part of the time, as (0.3, 0.8), not {quota!r}")
        least, most = quota
        _require_part("the least of quota", least, 0.0)
        _require_part("the most of quota", most, LEAST)
        if least > most:
            raise InvalidShare(f"the least of quota is at most its most: {quota!r}")
        nbytes = self.memory_bytes
        if nbytes is not None and (type(nbytes) is not int or not 0 <= nbytes <= MOST_BYTES):
            raise InvalidShare(f"memory_bytes is a whole number of bytes, or None, not {nbytes!r}")
        object.__setattr__(self, "quota", (least, most))


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """The work of a function on a share of a device, as `kaas profile` measures it.

    Args:
        sms: the part of the streaming multiprocessors, from 0.001 to 1, as the device grants it.
        quota: the part of the time, from 0.001 to 1.
        rate_per_s: requests a second, from 1e-6 to 1e12, while requests wait.
        p99_s: the 99th percentile of the latency without waiting for other requests, in seconds.
        batch: of each request: the inputs that it carries.
        p50_s: the median of this latency.
        device_bytes: of the constants and of one request's other memory.
        requests: that were measured; 0 of a point on the line between two that were.

    Raises:
        InvalidConfig: a number outside of its range.
    """

    sms: float
    quota: float
    rate_per_s: float
    p99_s: float
    batch: int = 1
    p50_s: float = 0.0
    device_bytes: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        limits: dict[str, tuple[float, float]] = {
            "sms": (LEAST, 1), "quota": (LEAST, 1), "rate_per_s": (1e-6, 1e12), "p99_s": (0, 1e12), "p50_s": (0, 1e12),
            "batch": (1, 1 << 60), "device_bytes": (0, 1 << 60), "requests": (0, 1 << 60),
        }  # fmt: skip
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            kind: Any = int if name in ("batch", "device_bytes", "requests") else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
                number = "a whole number" if kind is int else "a number"
                message = f"{name} of a point is {number} from {least:g} to {most:g}, not {value!r}"
                raise InvalidConfig(message, field="points")

    @property
    def place(self) -> tuple[float, float, int]:
        """What tells it from others of its profile."""
        return self.sms, self.quota, self.batch


def as_points(given: Any) -> tuple[ProfilePoint, ...]:
    """Return the points of a profile, each given as one or as a mapping of its fields.

    Raises:
        InvalidConfig: they are none, or two are of one share.
    """
    points = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else (None,)
    try:
        found = tuple(ProfilePoint(**each) if isinstance(each, Mapping) else each for each in points)
    except TypeError as error:
        raise InvalidConfig(f"a point has other fields: {error}", field="points") from error
    if len(found) > MOST_POINTS or not all(isinstance(each, ProfilePoint) for each in found):
        raise InvalidConfig(f"points is up to {MOST_POINTS} ProfilePoints, not {str(given)[:80]}", field="points")
    if len({each.place for each in found}) < len(found):
        raise InvalidConfig("points has two of one share and batch", field="points")
    return found


def _require_part(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise InvalidShare(f"{name} is a part from {least:g} to 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Scale(Sequence[Any]):
    """A number of equal devices that grows and shrinks with the load, for `Config.devices`.

    A pool begins with `min` devices. One more comes when requests have waited for longer than a device takes to start,
    as many more at a time as there are. One goes when so many were not needed for `idle_s`: no request begins there
    any more, and those that run there end first. Docs: `docs/scale.md`.

    To readers of the configuration it is a sequence of `max` devices; of none while `device` is None.

    Args:
        min: devices that are always there, from 0 on. With 0, the first request brings one.
        max: devices at most, from 1 to 4096.
        device: a `kaas.Device`; all of them are as this one. None: GPUs if there are any, else software devices.
        idle_s: seconds for which a device was not needed before it goes.

    Raises:
        InvalidConfig: a number is out of these bounds, or min is above max.
    """

    min: int
    max: int
    device: Any = None  # `Device` is in a module above this one, which checks it
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        for name, number, least in (("min", self.min, 0), ("max", self.max, 1)):
            if type(number) is not int or not least <= number <= MOST_DEVICES:
                message = f"{name} is a number of devices from {least} to {MOST_DEVICES}, not {number!r}"
                raise InvalidConfig(message, field="devices")
        if self.min > self.max:
            message = f"min is at most max: not {self.min} devices at least and {self.max} at most"
            raise InvalidConfig(message, field="devices")
        idle_s = self.idle_s
        if isinstance(idle_s, bool) or not isinstance(idle_s, int | float) or not 0 <= idle_s < math.inf:
            raise InvalidConfig(f"idle_s is seconds from 0 on, not {idle_s!r}", field="devices")

    def __len__(self) -> int:
        return 0 if self.device is None else self.max

    def __getitem__(self, index: Any) -> Any:
        return ((self.device,) * len(self))[index]
