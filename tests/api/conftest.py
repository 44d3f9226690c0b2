"""kTasks and pools for the tests of the API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    """Takes its "steps" in nanoseconds, about; "out" is a number that only depends on them."""
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), kaas.Scalar("steps", "i64")])], [out])


def crash_task() -> kaas.KTask:
    """Writes to an address that nobody has."""
    out = kaas.Buffer("out", 1, "int32")
    return kaas.KTask([kaas.Kernel(STEPS, "crash", 1, 1, [kaas.Out(out)])], [out])


def numbers(n: int = N, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(n, dtype=np.float32)


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """Ray as `kaas.init` starts it, but without its dashboard: one for all whose pool is from `start`."""
    import ray

    from kaas.api import SOFTWARE_SLOTS
    from kaas.pool.ray_transport import SOFTWARE_RESOURCE

    ray.init("local", resources={SOFTWARE_RESOURCE: SOFTWARE_SLOTS}, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def start(shared_ray: None) -> Iterator[Callable[..., bool]]:  # noqa: ARG001 - Ray runs
    """`kaas.init`, for the one pool of a module, which ends with it."""
    yield kaas.init
    kaas.shutdown()


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """No Ray yet: for a module that starts one in its own way. It runs after those that share theirs."""
    import ray

    ray.shutdown()
    yield
    kaas.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(start: Callable[..., bool]) -> None:
    """A pool of two small software devices; one for a module."""
    start(devices=[kaas.Device("software", DEVICE_BYTES)] * 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Here, and only here, modules with a Ray of their own run last."""
    places = [place for place, item in enumerate(items) if item.path.parent == FOLDER]
    ours = [items[place] for place in places]
    ours.sort(key=lambda item: "own_ray" in getattr(item, "fixturenames", ()))
    for place, item in zip(places, ours, strict=True):
        items[place] = item
