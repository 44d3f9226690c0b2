"""Fixtures of outcomes: a pool, and servers for remote clients."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest

import kaas
from tests.server.conftest import serve

__all__ = ["serve"]


@pytest.fixture(scope="module")
def pool() -> Iterator[None]:
    """A pool of one small software device, without Ray, for the tests of a module."""
    device = kaas.Device("software", memory_bytes=64 << 20)
    kaas.init(ray=False, name=f"outcomes {token_hex(4)}", config=kaas.Config(devices=(device,)))
    yield
    kaas.shutdown()
