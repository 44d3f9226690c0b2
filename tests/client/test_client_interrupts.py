"""Ctrl-C in a thread that calls a server: the next calls get their replies, and no credit is lost."""

from __future__ import annotations

from itertools import count

import pytest

import kaas
from tests.client.client_setting import ONES, TASK, client, server, small
from tests.client.fake_server import FakeServer
from tests.interrupted import interrupted
from tests.timeouts import TIMEOUT_S

__all__ = ["client", "server"]


@pytest.mark.parametrize(("limit", "calls"), [(2, 1), (1, 2)], ids=["with credit", "waiting for credit"])
def test_calls_may_be_interrupted_anywhere(server: FakeServer, limit: int, calls: int) -> None:
    server.limits = small(limit)
    with kaas.Client(server.address, patience_s=TIMEOUT_S) as client:
        function = client.register(TASK)

        def call(*factors: int) -> list[float]:
            futures = [client.call(function, {"x": ONES * each}, deadline_s=TIMEOUT_S) for each in factors]
            return [future.result()[0] for future in futures]

        for at in count(1):
            place = interrupted(lambda: call(*[1] * calls), at)
            assert call(2, 3, 4) == [4, 6, 8], place
            if not place:
                break


def test_other_requests_may_be_interrupted_anywhere(client: kaas.Client) -> None:
    client.put("x", ONES)
    for at in count(1):
        place = interrupted(lambda: client.get("x"), at)
        assert (client.get("x") == ONES).all(), place
        if not place:
            break
