"""Tests can wait for any descriptor: a process that runs all tests has more than select.select takes."""

from __future__ import annotations

import fcntl
import os
import resource

import pytest

from tests import timeouts


def test_a_descriptor_above_1023_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    near, far = os.pipe()
    high = fcntl.fcntl(near, fcntl.F_DUPFD, 1024)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(timeouts, "TIMEOUT_S", 0)
            assert not timeouts.readable(high)
        os.write(far, b"x")
        assert timeouts.readable(high)
    finally:
        for each in (near, far, high):
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
