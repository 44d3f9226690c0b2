"""A request that is late or cancelled while it runs: its caller gets a reply, and status shows the request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kaas
from kaas.errors import DeadlineExceeded
from tests.outcomes.test_paying import ENDLESS, spinning
from tests.timeouts import until

pytestmark = pytest.mark.processes

LIMIT_S = 4.0


@pytest.fixture
def pool() -> Iterator[None]:
    devices = (kaas.Device("software", memory_bytes=64 << 20),) * 2
    kaas.init(ray=False, name="outcomes-abandoned", config=kaas.Config(devices=devices, run_limit_s=LIMIT_S))
    yield
    kaas.shutdown()


def running() -> tuple[int, int]:
    status = kaas.status()
    return status.running, status.abandoned


@pytest.mark.usefixtures("pool")
def test_status_shows_abandoned_requests_until_their_kernels_end() -> None:
    for warm in [kaas.call(spinning(), {}, scalars={"steps": 1}) for _ in range(4)]:
        warm.result()
    late = kaas.call(spinning(), {}, scalars={"steps": ENDLESS}, deadline_s=1.0)
    cancelled = kaas.call(spinning(2), {}, scalars={"steps": ENDLESS})
    until(lambda: kaas.status().running == 2)
    with pytest.raises(
        DeadlineExceeded, match=f"its kernel has the device until it ends, at most to the run limit of {LIMIT_S} s"
    ):
        late.result()
    assert cancelled.cancel()
    until(lambda: running() == (2, 2))
    told = (
        "2 of those that run were cancelled or late; they have their slots until their kernels end, at most for 4.0 s"
    )
    assert told in " ".join(str(kaas.status()).split())
    until(lambda: running() == (0, 0))
    assert kaas.call(spinning(), {}, scalars={"steps": 1}).result() is not None
