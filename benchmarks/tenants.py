"""What the benchmarks of scheduling run: kTasks that hold constants, need temporaries, copy or compute."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kaas
from kaas.code.kernels import library

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
N = 1024
"""Elements that a kernel touches, however large its buffers are."""
X = np.ones(N, np.float32)


@contextmanager
def pool(name: str, devices: list[kaas.Device], policy: Any, **options: Any) -> Iterator[None]:
    """A pool without Ray that no other program joins, with the workers that its policy starts ahead of requests."""
    config = kaas.Config(tuple(devices), policy, **options)
    kaas.init(ray=False, name=f"{name}-{os.getpid()}", config=config)
    try:
        while any(device.state == "starting" for device in kaas.status().devices):
            time.sleep(0.01)
        yield
    finally:
        kaas.shutdown()


def reader(constant_bytes: int) -> kaas.KTask:
    """y = x / 2 + w, of the first N elements of w, which is a constant of so many bytes."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    w = kaas.Buffer("w", constant_bytes // 4, "float32")
    return kaas.KTask([_step(x, w, y)], [y])


def spender(temporary_bytes: int) -> kaas.KTask:
    """y = (x / 2 + x) / 2 + x, by way of a temporary of so many bytes."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    t = kaas.Buffer("t", temporary_bytes // 4, "float32")
    return kaas.KTask([_step(x, x, t), _step(t, x, y)], [y])


def copier(nbytes: int) -> kaas.KTask:
    """y = x - x, both of so many bytes, of which the kernel touches few: its device time is that of its copies."""
    x, y = kaas.Buffer("x", nbytes // 4, "float32"), kaas.Buffer("y", nbytes // 4, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(x), kaas.Out(y), kaas.u32(N)]
    return kaas.KTask([kaas.Kernel(library("nearest_neighbours"), "vsub", N // 256, 256, args)], [y])


def _step(a: kaas.Buffer, w: kaas.Buffer, out: kaas.Buffer) -> kaas.Kernel:
    args: list[Any] = [kaas.In(a), kaas.In(w), kaas.Out(out), kaas.i32(N), kaas.i32(1)]
    return kaas.Kernel(kaas.Library.from_file(PTX), "step", N // 256, 256, args)


def holder(constant_bytes: int, value: float, **options: Any) -> Any:
    """A function with a constant of its own; `check` says whether an answer is its."""
    w = np.full(constant_bytes // 4, value, np.float32)
    return kaas.register(reader(constant_bytes), {"w": w}).options(**options)


def check(y: np.ndarray[Any, Any], value: float) -> None:
    """That the function has read its own constant: a fast pool may be a wrong one."""
    if abs(y[0] - (0.5 + value)) > 1e-3 or abs(y[-1] - (0.5 + value)) > 1e-3:
        raise SystemExit(f"a function whose constant is {value} gave {y[0]}: this measured something else")


def device_misses() -> int:
    """Objects that requests did not find on their device since the last reset."""
    rows = (row for row in kaas.stats().tiers if row.tier == "device")
    return sum(row.compulsory + row.capacity for row in rows)
