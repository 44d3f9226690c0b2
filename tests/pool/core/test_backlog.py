"""Clients' settings can change while a pool runs; their queued requests and charges stay."""

from __future__ import annotations

import pytest

from kaas.config import ClientSettings
from kaas.errors import QueueFull
from kaas.pool.core.requests import Backlog
from kaas.scheduling.events import ClientKnown
from kaas.scheduling.policies.fair_share import FairShare


def test_a_new_limit_counts_requests_already_queued() -> None:
    backlog = Backlog(10, {"a": ClientSettings(max_queued=1)})
    backlog.enter("a")
    with pytest.raises(QueueFull):
        backlog.enter("a")
    backlog.enter("b")
    backlog.enter("b")
    backlog.regrant({"b": ClientSettings(max_queued=2)})
    backlog.enter("a")
    with pytest.raises(QueueFull):
        backlog.enter("b")
    backlog.leave("b")
    backlog.enter("b")
    for client in ("a", "a", "b", "b"):
        backlog.leave(client)
    backlog.regrant({"a": ClientSettings(max_queued=1)})
    backlog.enter("a")


def test_a_new_weight_keeps_the_charges_of_a_client() -> None:
    accounts = FairShare(1)
    account = accounts.know(ClientKnown(0.0, "a", charged_s=6.0))
    assert account.time_s == 6.0
    assert accounts.know(ClientKnown(1.0, "a", weight=3.0, charged_s=None)) is account
    assert (account.charged_s, account.time_s) == (6.0, 2.0)
