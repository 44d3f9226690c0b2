"""The description of a software device: its memory, its faults, and the modelled time of copies and kernels."""

from __future__ import annotations

import ctypes
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softgpu.faults import Fault

__all__ = ["Device", "Model", "Takes", "describe_time"]


@dataclass(frozen=True, slots=True)
class Takes:
    """The time of a kernel: seconds on a share of the device. Kernels queue if the sum of their shares exceeds 1."""

    seconds: float
    share: float = 1.0

    def __post_init__(self) -> None:
        if not (self.seconds >= 0 and 0 < self.share <= 1):
            raise ValueError(f"a kernel takes 0 or more seconds on more than 0 and at most 1 of the device, not {self}")


@dataclass(frozen=True, slots=True)
class Model:
    """Modelled time of one device. Work runs for real; then it waits for the rest of its time without using a core.

    Args:
        copy_bytes_per_s: the rate of each direction between host and device, each with its own engine; None: not
            modelled. A rate above that of a core (some 7 GB/s) is not reached.
        copy_latency_s: the time added to every such copy.
        launch_latency_s: the time added to every kernel.
        kernels: times by symbol; the time of a kernel without an entry is not modelled.
    """

    copy_bytes_per_s: float | None = None
    copy_latency_s: float = 0.0
    launch_latency_s: float = 0.0
    kernels: Mapping[str, Takes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rate = self.copy_bytes_per_s
        if (rate is not None and not rate > 0) or not (self.copy_latency_s >= 0 and self.launch_latency_s >= 0):
            raise ValueError(f"rates are positive, latencies not negative: {self}")

    @classmethod
    def from_file(cls, path: str | Path) -> Model:
        """Read TOML: the fields by name, and a table `kernels` with symbol = [seconds, share].

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is no model.
        """
        values: dict[str, Any] = tomllib.loads(Path(path).read_text())
        kernels = values.pop("kernels", {})
        try:
            return cls(**values, kernels={name: Takes(*takes) for name, takes in kernels.items()})
        except TypeError as error:
            raise ValueError(f"{path} is no model of a device: {error}") from error


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


def describe_time(library: ctypes.CDLL, ordinal: int, model: Model) -> int:
    """Give a model to a device of the driver, and return a CUresult."""
    count = len(model.kernels)
    names = (ctypes.c_char_p * count)(*(name.encode() for name in model.kernels))
    seconds = (ctypes.c_double * count)(*(takes.seconds for takes in model.kernels.values()))
    shares = (ctypes.c_double * count)(*(takes.share for takes in model.kernels.values()))
    call = library.softgpu_model
    call.argtypes = [ctypes.c_uint32, *[ctypes.c_double] * 3, ctypes.c_uint32, *[ctypes.c_void_p] * 3]
    rates = (model.copy_bytes_per_s or 0.0, model.copy_latency_s, model.launch_latency_s)
    return int(call(ordinal, *rates, count, names, seconds, shares))
