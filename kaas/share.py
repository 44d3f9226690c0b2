"""`Share`: the part of each device that a function's or a client's requests may have."""

from __future__ import annotations

from dataclasses import dataclass

from kaas.errors import InvalidShare

LEAST = 0.001
"""The smallest part of the SMs, and the smallest most of the time."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of each device, in space and in time (FaST-GShare, section 3.3). It bounds what runs; nothing stays idle.

    Args:
        sms: the part of the streaming multiprocessors, from 0.001 to 1. It is rounded up to partitions that the device
            can make: `kaas.status()` says which.
        quota: the least and the most part of the time, from 0 to 1. In each window of `Config.window_s` the share has
            its least, if it has requests, and never more than its most, in both cases but for the request that runs
            when the limit is reached. Time that others leave goes to those that can use it, up to their most.

    Raises:
        InvalidShare: a part is none.
    """

    sms: float = 1.0
    quota: tuple[float, float] = (0.0, 1.0)

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
        object.__setattr__(self, "quota", (least, most))


def _require_part(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise InvalidShare(f"{name} is a part from {least:g} to 1, not {value!r}")
