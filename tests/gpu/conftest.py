"""Tests of this folder need a real GPU; without one they are skipped with a reason."""

from __future__ import annotations

import functools

import pytest

from kaas.errors import KaasError


@functools.cache
def why_no_gpu() -> str:
    """Return the reason why this process can use no GPU; "" if it can use one."""
    import softgpu
    from kaas.executor.device.device import gpu_count

    if softgpu.loaded_devices():
        return "the software GPU is loaded in this process"
    try:
        return "" if gpu_count() else "no NVIDIA GPU on this machine"
    except KaasError as error:
        return f"the GPU cannot be used: {error}"


@pytest.fixture(params=[pytest.param("gpu", marks=pytest.mark.gpu), "software"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of device that the test runs on: an NVIDIA GPU, and the software GPU."""
    if request.param == "software":
        request.getfixturevalue("softgpu")
    return str(request.param)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and why_no_gpu():
        pytest.skip(why_no_gpu())
