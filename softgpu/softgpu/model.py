"""The description of a software device: its memory, its faults, and the modelled time of copies and kernels."""

from __future__ import annotations

import ctypes
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softgpu.faults import Fault

__all__ = ["MAX_SMS", "Device", "Model", "Takes", "describe_time"]

MAX_SMS = 512
"""The most multiprocessors of a device."""


@dataclass(frozen=True, slots=True)
class Takes:
    """The time of a kernel, alone on the whole device.

    Args:
        seconds: the time.
        share: the part of the device that it holds meanwhile: kernels queue if the sum of their shares exceeds 1. None:
            the multiprocessors that its blocks fill, if the model has multiprocessors, or else the whole device.
        bandwidth: the part of the bandwidth of device memory that it uses meanwhile.
    """

    seconds: float
    share: float | None = None
    bandwidth: float = 0.0

    def __post_init__(self) -> None:
        if not (self.seconds >= 0 and (self.share is None or 0 < self.share <= 1)):
            raise ValueError(f"a kernel takes 0 or more seconds on more than 0 and at most 1 of the device, not {self}")
        if not 0 <= self.bandwidth <= 1:
            raise ValueError(f"a kernel uses from 0 to 1 of the bandwidth, not {self}")


@dataclass(frozen=True, slots=True)
class Model:
    """Modelled time of one device. Work runs for real; then it waits for the rest of its time without using a core.

    Args:
        copy_bytes_per_s: the rate of each direction between host and device, each with its own engine; None: not
            modelled. A rate above that of a core (some 7 GB/s) is not reached.
        copy_latency_s: the time added to every such copy.
        launch_latency_s: the time added to every kernel.
        kernels: times by symbol; the time of a kernel without an entry is not modelled.
        sms: the number of the device's multiprocessors, up to 512, which programs see and split; None: one for each
            processor of the machine, and kernels hold shares of the device.
        blocks_per_sm: how many blocks of a kernel run at a time on a multiprocessor.
    """

    copy_bytes_per_s: float | None = None
    copy_latency_s: float = 0.0
    launch_latency_s: float = 0.0
    kernels: Mapping[str, Takes] = field(default_factory=dict)
    sms: int | None = None
    blocks_per_sm: int = 1

    def __post_init__(self) -> None:
        rate = self.copy_bytes_per_s
        if (rate is not None and not rate > 0) or not (self.copy_latency_s >= 0 and self.launch_latency_s >= 0):
            raise ValueError(f"rates are positive, latencies not negative: {self}")
        if not (self.sms is None or 1 <= self.sms <= MAX_SMS) or self.blocks_per_sm < 1:
            raise ValueError(f"a device has 1 to {MAX_SMS} multiprocessors, each with room for a block: {self}")

    @classmethod
    def from_file(cls, path: str | Path) -> Model:
        """Read TOML: the fields by name, and a table `kernels` with symbol = [seconds, share] or a table of `Takes`.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is no model.
        """
        values: dict[str, Any] = tomllib.loads(Path(path).read_text())
        kernels = values.pop("kernels", {})
        try:
            return cls(**values, kernels={name: _takes(entry) for name, entry in kernels.items()})
        except TypeError as error:
            raise ValueError(f"{path} is no model of a device: {error}") from error


def _takes(entry: Any) -> Takes:
    return Takes(**entry) if isinstance(entry, Mapping) else Takes(*entry)


@dataclass(frozen=True, slots=True)
class Device:
    """One software device, as `load` makes it.

    Args:
        memory_bytes: the size of its memory.
        model: the model of its time; None: no time is modelled.
        faults: the faults to inject, counted from the moment when the device is loaded.
    """

    memory_bytes: int
    model: Model | None = None
    faults: tuple[Fault, ...] = ()


class _TakesRecord(ctypes.Structure):
    """The struct sg_takes of abi.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("seconds", ctypes.c_double),
        ("share", ctypes.c_double),
        ("bandwidth", ctypes.c_double),
    ]


class _ModelRecord(ctypes.Structure):
    """The struct sg_model of abi.h."""

    _fields_ = [
        ("copy_bytes_per_s", ctypes.c_double),
        ("copy_latency_s", ctypes.c_double),
        ("launch_latency_s", ctypes.c_double),
        ("sms", ctypes.c_uint32),
        ("blocks_per_sm", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("kernels", ctypes.POINTER(_TakesRecord)),
    ]


def describe_time(library: ctypes.CDLL, ordinal: int, model: Model) -> int:
    """Give a model to a device of the driver, and return a CUresult."""
    kernels = [
        _TakesRecord(name.encode(), takes.seconds, takes.share or 0.0, takes.bandwidth)
        for name, takes in model.kernels.items()
    ]
    rates = (model.copy_bytes_per_s or 0.0, model.copy_latency_s, model.launch_latency_s)
    table = (_TakesRecord * len(kernels))(*kernels)
    record = _ModelRecord(*rates, model.sms or 0, model.blocks_per_sm, len(kernels), table)
    library.softgpu_model.argtypes = [ctypes.c_uint32, ctypes.POINTER(_ModelRecord)]
    return int(library.softgpu_model(ordinal, ctypes.byref(record)))
