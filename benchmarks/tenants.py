"""The kTasks of the scheduling benchmarks: they hold constants, need temporaries, copy or compute."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kaas
from kaas.kernels import library

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
N = 1024
"""The number of elements that a kernel touches, for buffers of any size."""
X = np.ones(N, np.float32)


@contextmanager
def pool(name: str, devices: list[kaas.Device], policy: Any, **options: Any) -> Iterator[None]:
    """Start a pool without Ray, for this program alone, with the workers that its policy starts ahead of requests."""
    config = kaas.Config(tuple(devices), policy, **options)
    kaas.init(ray=False, name=f"{name}-{os.getpid()}", config=config)
    try:
        while any(device.state == "starting" for device in kaas.status().devices):
            time.sleep(0.01)
        yield
    finally:
        kaas.shutdown()


def reader(constant_bytes: int) -> kaas.KTask:
    """Return the kTask of y = x / 2 + w with the first N elements of w, a constant of so many bytes."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    w = kaas.Buffer("w", constant_bytes // 4, "float32")
    return kaas.KTask([_step(x, w, y)], [y])


def spender(temporary_bytes: int) -> kaas.KTask:
    """Return the kTask of y = (x / 2 + x) / 2 + x, with a temporary of so many bytes."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    t = kaas.Buffer("t", temporary_bytes // 4, "float32")
    return kaas.KTask([_step(x, x, t), _step(t, x, y)], [y])


def copier(nbytes: int) -> kaas.KTask:
    """Return the kTask of y = x - x, both of so many bytes; the kernel touches few, so that its time is its copies'."""
    x, y = kaas.Buffer("x", nbytes // 4, "float32"), kaas.Buffer("y", nbytes // 4, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(x), kaas.Out(y), kaas.u32(N)]
    return kaas.KTask([kaas.Kernel(library("nearest_neighbours"), "vsub", N // 256, 256, args)], [y])


def _step(a: kaas.Buffer, w: kaas.Buffer, out: kaas.Buffer) -> kaas.Kernel:
    args: list[Any] = [kaas.In(a), kaas.In(w), kaas.Out(out), kaas.i32(N), kaas.i32(1)]
    return kaas.Kernel(kaas.Library.from_file(PTX), "step", N // 256, 256, args)


def holder(constant_bytes: int, value: float, **options: Any) -> Any:
    """Register a function with its own constant; `check` checks that a result is the function's."""
    w = np.full(constant_bytes // 4, value, np.float32)
    return kaas.register(reader(constant_bytes), {"w": w}).options(**options)


def check(y: np.ndarray[Any, Any], value: float) -> None:
    """Check that the function has read its own constant: a fast pool may be a wrong one."""
    if abs(y[0] - (0.5 + value)) > 1e-3 or abs(y[-1] - (0.5 + value)) > 1e-3:
        raise SystemExit(f"a function whose constant is {value} gave {y[0]}: this measured something else")


def device_misses() -> int:
    """Return the number of objects that requests did not find on their device since the last reset."""
    rows = (row for row in kaas.stats().tiers if row.tier == "device")
    return sum(row.compulsory + row.capacity for row in rows)
