"""A process that stands still (SIGSTOP) holds no caller beyond its deadline, and goes on where it was."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.errors import DeadlineExceeded
from tests.server.servers import WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

DEADLINE_S = 1.0
X = np.arange(WIDTH, dtype=np.float32)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process stand still; wait until it does."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def function() -> Iterator[kaas.Function]:
    kaas.init(ray=False, name=f"stopped {os.getpid()}", config=kaas.Config(devices=(kaas.Device(),)))
    yield kaas.register(scaled())
    kaas.shutdown()


def check(future: kaas.Future) -> None:
    np.testing.assert_array_equal(future.result(TIMEOUT_S), 2 * X)


def test_a_pool_that_stands_still(function: kaas.Function) -> None:
    check(kaas.call(function, {"x": X}))
    with stopped(kaas.status().pid):
        with pytest.raises(DeadlineExceeded, match="no reply from the pool within 1 s"):
            kaas.call(function, {"x": X}, deadline_s=DEADLINE_S).result(TIMEOUT_S)
        ended = threading.Event()
        kaas.call(function, {"x": X}, deadline_s=DEADLINE_S).add_done_callback(lambda _: ended.set())
        assert ended.wait(TIMEOUT_S)

        async def awaited() -> None:
            await kaas.call(function, {"x": X}, deadline_s=DEADLINE_S)

        with pytest.raises(DeadlineExceeded):
            asyncio.run(awaited())
        waits = kaas.call(function, {"x": X})
    check(waits)
    check(kaas.call(function, {"x": X}, deadline_s=TIMEOUT_S))


def test_an_executor_that_stands_still(function: kaas.Function) -> None:
    check(kaas.call(function, {"x": X}))
    (device,) = kaas.status().devices
    assert device.info is not None
    with stopped(device.info.pid):
        running, queued = (kaas.call(function, {"x": X}, deadline_s=DEADLINE_S) for _ in range(2))
        for future in (running, queued):
            with pytest.raises(DeadlineExceeded, match=r"did not end in 1\.0 s"):
                future.result(TIMEOUT_S)
    check(kaas.call(function, {"x": X}))


def test_a_server_that_stands_still(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        with kaas.Client(server.endpoint, keys=tmp_path / "alice.keys", patience_s=TIMEOUT_S) as client:
            function = client.register(scaled())
            check(client.call(function, {"x": X}))
            with stopped(server.process.pid), pytest.raises(DeadlineExceeded, match="no reply from the server"):
                client.call(function, {"x": X}, deadline_s=DEADLINE_S).result(TIMEOUT_S)
            check(client.call(function, {"x": X}))
    finally:
        server.close()
