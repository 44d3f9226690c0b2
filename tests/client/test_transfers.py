"""Transfers of a client that the server takes few requests of at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from kaas.client.open_calls import TryAgain
from kaas.client.remote_calls import RemoteCalls
from kaas.client.transfers import WINDOW, Transfers
from kaas.errors import QueueFull
from kaas.futures import PendingReply


class FewAtATime:
    """Calls to a server that refuses a request while `most` are open, and replies when the client waits."""

    def __init__(self, most: int) -> None:
        self.lock = threading.Lock()
        self.most, self.refused, self.stored = most, 0, list[int]()
        self._open = deque[tuple[PendingReply, int]]()

    def ask(self, make: Callable[[int], int], frames: Sequence[Any] = ()) -> PendingReply:  # noqa: ARG002
        pending = PendingReply(cast(Any, self), 0)
        if len(self._open) >= self.most:
            self.refused += 1
            pending.end(error=TryAgain(QueueFull("too many"), 0.05))
        else:
            self._open.append((pending, make(0)))
        return pending

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:  # noqa: ARG002
        while not pending.ended:
            answered, value = self._open.popleft()
            self.stored.append(value)
            answered.end((value,))


@pytest.mark.parametrize("most", [1, 2, 3, WINDOW])
def test_values_are_refused_once_and_not_at_each_repeat(most: int) -> None:
    calls = FewAtATime(most)
    transfers = Transfers(cast(RemoteCalls, calls))
    values = range(5 * WINDOW)

    def rest() -> None:
        transfers.ask_all((partial(_same, value), ()) for value in values if value not in calls.stored)

    for attempt in range(2):
        try:
            rest()
            break
        except TryAgain:
            assert not attempt
            calls.wait(calls._open[-1][0], None)  # those under way end while the client waits
    assert sorted(calls.stored) == list(values)
    assert calls.refused == WINDOW - most


def _same(value: int, _: int) -> int:
    return value
