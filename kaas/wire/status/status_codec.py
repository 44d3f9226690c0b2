"""Status and statistics of a pool without Ray, or of a worker, as bytes, without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

import softgpu
from kaas.config import ClientSettings, Config, Device, FunctionProfile, described
from kaas.share import ProfilePoint, Scale, Share
from kaas.wire.status.stats import KernelStats, OutcomeStats, StageStats, Stats, TierStats
from kaas.wire.status.status import (
    DeviceStatus,
    ExecutorStatus,
    PinStatus,
    PromiseStatus,
    QuarantineStatus,
    ShareStatus,
    Status,
    WorkerInfo,
)

T = TypeVar("T")

_CLASS = ""
"""The entry of a map with the name of its class; a map without the entry is a plain map."""
_CLASSES = {
    each.__name__: each
    for each in (
        ClientSettings,
        Config,
        Device,
        DeviceStatus,
        ExecutorStatus,
        FunctionProfile,
        KernelStats,
        OutcomeStats,
        PinStatus,
        ProfilePoint,
        PromiseStatus,
        QuarantineStatus,
        Scale,
        Share,
        ShareStatus,
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


def encode(value: Any) -> bytes:
    """Return a value as bytes. Of code in a configuration, such as a policy, only the name is sent."""
    return msgspec.msgpack.encode(_plain(value))


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """Return an encoded value of this class.

    Raises:
        TypeError: the value is of another class.
    """
    value = _made(msgspec.msgpack.decode(data))
    if not isinstance(value, kind):
        raise TypeError(f"the reply is a {kind.__name__}, not {value!r}")
    return value


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if is_dataclass(type(value)) and type(value).__name__ in _CLASSES:
        entries = {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        return {_CLASS: type(value).__name__, **entries}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_plain(entry) for entry in value]
    return described(value)


def _made(value: Any) -> Any:
    """Invert `_plain`; every sequence becomes a tuple."""
    if isinstance(value, list):
        return tuple(map(_made, value))
    if not isinstance(value, dict):
        return value
    entries = {key: _made(entry) for key, entry in value.items()}
    made = entries.pop(_CLASS, None)
    return entries if made is None else _CLASSES[made](**entries)
