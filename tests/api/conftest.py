"""kTasks and pools for the tests of the API."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kaas

FOLDER = Path(__file__).parent
STEPS = kaas.Library.from_file(FOLDER / "kernels" / "steps.ptx")
DEVICE_BYTES = 64 << 20
N = 1000


def _grid(n: int) -> tuple[int, int]:
    return math.ceil(n / 256), 256


def scale_task(n: int = N, symbol: str = "scale", **options: Any) -> kaas.KTask:
    """y = x * factor."""
    x, y = kaas.Buffer("x", n, "float32"), kaas.Buffer("y", n, "float32")
    kernel = kaas.Kernel(STEPS, symbol, *_grid(n), [kaas.In(x), kaas.Out(y), kaas.Scalar("factor", "f32"), kaas.i32(n)])
    return kaas.KTask([kernel], [y], **options)


def add_task(n: int = N) -> kaas.KTask:
    """c = a + b."""
    a, b, c = (kaas.Buffer(name, n, "float32") for name in "abc")
    return kaas.KTask([kaas.Kernel(STEPS, "add", *_grid(n), [kaas.In(a), kaas.In(b), kaas.Out(c), kaas.i32(n)])], [c])


def both_task(n: int = N) -> kaas.KTask:
    """double = x + x, then quadruple = double + double; the later one is listed first."""
    x, double, quadruple = (kaas.Buffer(name, n, "float32") for name in ("x", "double", "quadruple"))
    first = kaas.Kernel(STEPS, "add", *_grid(n), [kaas.In(x), kaas.In(x), kaas.Out(double), kaas.i32(n)])
    second = kaas.Kernel(STEPS, "add", *_grid(n), [kaas.In(double), kaas.In(double), kaas.Out(quadruple), kaas.i32(n)])
    return kaas.KTask([first, second], ["quadruple", "double"])


def spin_task() -> kaas.KTask:
    """Takes about "steps" nanoseconds; "out" is a number that depends on "steps" only."""
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), kaas.Scalar("steps", "i64")])], [out])


def crash_task() -> kaas.KTask:
    """Writes to an address outside all allocations."""
    out = kaas.Buffer("out", 1, "int32")
    return kaas.KTask([kaas.Kernel(STEPS, "crash", 1, 1, [kaas.Out(out)])], [out])


def numbers(n: int = N, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(n, dtype=np.float32)


@pytest.fixture(scope="module")
def pool(start: Callable[..., bool]) -> None:
    """A pool of two small software devices, one pool for each module."""
    start(devices=[kaas.Device("software", DEVICE_BYTES)] * 2)
