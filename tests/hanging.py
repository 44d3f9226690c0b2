"""A test that hangs is one failed test, and not the end of all others."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Generator

import pytest

LONGEST_S = 600.0  # of one part of a test, such as a fixture; the slowest takes a quarter of it on a busy machine


class HangingTests:
    """Ends the process of a test that takes too long, with the stack of each of its threads on stderr.

    pytest-xdist calls that test failed and starts a process for those that are left. pytest's `faulthandler_timeout`
    does the same, but no longer watches when a test has failed, so not while the fixtures of that test end.
    """

    def __init__(self) -> None:
        assert sys.__stderr__
        self._stderr = os.dup(sys.__stderr__.fileno())  # while a test runs pytest keeps the other one

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Fixtures begin."""
        return (yield from self._watched())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """The test's own body."""
        return (yield from self._watched())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """Fixtures end."""
        return (yield from self._watched())

    def _watched(self) -> Generator[None, object, object]:
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
