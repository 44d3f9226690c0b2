"""A client, its fake server, and the requests of tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kaas
from kaas.wire import protocol
from tests.client.fake_server import LIMITS, FakeServer
from tests.timeouts import TIMEOUT_S

WIDTH = 8
LIBRARY = kaas.Library.from_ptx(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f() { ret; }\n")
X, W, Y = (kaas.Buffer(name, WIDTH, "float32") for name in "xwy")
TASK = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(X), kaas.Out(Y)])], [Y])
ONES = np.ones(WIDTH, np.float32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[kaas.Client]:
    with kaas.Client(server.address, patience_s=TIMEOUT_S) as client:
        yield client


def wait_for_invokes(server: FakeServer, number: int) -> None:
    """Wait until so many Invokes have arrived."""
    server.until(lambda: len(server.of(protocol.Invoke)) >= number)


def small(requests: int) -> protocol.Limits:
    return protocol.Limits(requests, LIMITS.credit_bytes, LIMITS.frame_bytes)
