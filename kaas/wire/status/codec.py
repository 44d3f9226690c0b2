"""What a pool without Ray, or a worker, says of itself: status and statistics as bytes, without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

import softgpu
from kaas.config import ClientSettings, Config, Device, described
from kaas.wire.status.stats import KernelStats, OutcomeStats, StageStats, Stats, TierStats
from kaas.wire.status.status import DeviceStatus, PinStatus, QuarantineStatus, Status, WorkerInfo

T = TypeVar("T")

_CLASS = ""
"""The entry of a map that says of which class it is; without it, it is just a map."""
_CLASSES = {
    each.__name__: each
    for each in (
        ClientSettings,
        Config,
        Device,
        DeviceStatus,
        KernelStats,
        OutcomeStats,
        PinStatus,
        QuarantineStatus,
        softgpu.Fault,
        softgpu.Model,
        softgpu.Takes,
        StageStats,
        Stats,
        Status,
        TierStats,
        WorkerInfo,
    )
}


def encode(answer: Any) -> bytes:
    """What in a configuration is code, a policy, say, is there by its name only."""
    return msgspec.msgpack.encode(_plain(answer))


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """
    Raises:
        TypeError: it is no such answer.
    """
    answer = _made(msgspec.msgpack.decode(data))
    if not isinstance(answer, kind):
        raise TypeError(f"an answer is a {kind.__name__}, not {answer!r}")
    return answer


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if is_dataclass(type(value)) and type(value).__name__ in _CLASSES:
        told = {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        return {_CLASS: type(value).__name__, **told}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_plain(entry) for entry in value]
    return described(value)


def _made(value: Any) -> Any:
    """What was made plain; all that is a sequence there is a tuple."""
    if isinstance(value, list):
        return tuple(map(_made, value))
    if not isinstance(value, dict):
        return value
    entries = {key: _made(entry) for key, entry in value.items()}
    made = entries.pop(_CLASS, None)
    return entries if made is None else _CLASSES[made](**entries)
