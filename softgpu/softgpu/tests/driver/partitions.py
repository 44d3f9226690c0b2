"""Parts of a device's multiprocessors for tests, through the driver's calls."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from softgpu.tests.driver.calls import ok

SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def whole(device: int = 0) -> Any:
    """The multiprocessors of a device."""
    return ok(driver.cuDeviceGetDevResource(device, SM))


def parts(least: int, count: int, of: Any = None) -> tuple[list[Any], Any]:
    """So many equal parts, and the rest."""
    groups, made, rest = ok(driver.cuDevSmResourceSplitByCount(count, of or whole(), 0, least))
    assert made == len(groups) == count
    return groups, rest


def described(*resources: Any) -> Any:
    return ok(driver.cuDevResourceGenerateDesc(list(resources), len(resources)))


def green_of(*resources: Any, device: int = 0) -> Any:
    """A green context with these resources."""
    return ok(driver.cuGreenCtxCreate(described(*resources), device, 1))


def stream_of(green: Any) -> Any:
    return ok(driver.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0))


def view_of(green: Any) -> Any:
    """The context of a green context."""
    return ok(driver.cuCtxFromGreenCtx(green))
