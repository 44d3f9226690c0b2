"""Fixtures of the driver's cases: the driver over kernels.c, and a current context per test."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from softgpu import Model, strict_mode
from softgpu.model import describe_time
from softgpu.tests.driver.fake import load_fake
from softgpu.watch import take_refused


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The driver, loaded and initialised."""
    loaded = load_fake()
    from cuda.bindings import driver

    assert driver.cuInit(0)[0] == 0
    return loaded


@pytest.fixture(autouse=True)
def nothing_refused(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that makes a call which is not supported, unless it is marked `refusals`."""
    yield
    made = take_refused(library)
    assert made == () or request.node.get_closest_marker("refusals")


@pytest.fixture
def ctx(library: ctypes.CDLL) -> Iterator[object]:  # noqa: ARG001 - cuda.bindings finds the driver that it loaded
    """Device 0's primary context, current; reset afterwards, so that what a test leaves behind ends with it."""
    from cuda.bindings import driver

    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    yield context
    driver.cuCtxSetCurrent(driver.CUcontext(0))
    driver.cuDevicePrimaryCtxReset(0)


@pytest.fixture
def strict(library: ctypes.CDLL) -> Iterator[Callable[[int], None]]:
    """Turns strict mode on, with a seed; off afterwards, and pools keep nothing."""
    from cuda.bindings import driver

    from softgpu.tests.driver.mistakes import keep_blocks

    yield lambda seed: strict_mode(library, seed)
    strict_mode(library, None)
    driver.cuMemPoolTrimTo(driver.cuDeviceGetDefaultMemPool(0)[1], 0)
    keep_blocks(0)


@pytest.fixture
def with_sms(library: ctypes.CDLL, ctx: object) -> Iterator[None]:  # noqa: ARG001 - the context ends last
    """Device 0 has `partitions.SMS` multiprocessors."""
    from cuda.bindings import driver

    from softgpu.tests.driver.partitions import SMS

    assert describe_time(library, 0, Model(sms=SMS)) == 0
    yield
    driver.cuDevicePrimaryCtxReset(0)
    assert describe_time(library, 0, Model()) == 0
