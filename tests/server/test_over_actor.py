"""The benchmark of one request over an actor call, which starts Ray, in short."""

from __future__ import annotations

import pytest

from tests.server.test_short_benchmarks import broken, reported

pytestmark = pytest.mark.full


@pytest.mark.ray
def test_a_request_over_an_actor_call() -> None:
    report = reported("remote", "--rounds", "100", "--rate-rounds", "1", "--connections", "200")
    assert broken(report, "idle_connection_kb") == {}, report
    assert report["bars"].keys() == {"remote_over_actor", "remote_rate_over_actor", "idle_connection_kb"}
