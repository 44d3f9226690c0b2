"""Fixtures for all tests: the software devices that the tests of one process share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kaas import softgpu as software

# Ray reads this when it is imported; with its default it would leave a token in the home folder
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

SOFTGPU_BYTES = (256 << 20, 256 << 20, 256 << 20)


@pytest.fixture(scope="session")
def softgpu() -> tuple[int, ...]:
    """Three software devices of 256 MB in this process; their sizes in bytes.

    A process is given its devices once, so every test that wants some in-process takes them from here.
    """
    software.load(SOFTGPU_BYTES)
    return SOFTGPU_BYTES


@pytest.fixture(autouse=True)
def nothing_refused(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that makes a driver call which the software GPU refuses, unless it is marked `refusals`."""
    yield
    made = software.refused_calls()
    assert made == () or request.node.get_closest_marker("refusals")
