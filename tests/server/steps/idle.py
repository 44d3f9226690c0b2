"""A module with a process that is ready, and ends before it gets a step, for tests."""

from __future__ import annotations

import sys

from tests.server.steps.functions import same

__all__ = ["same"]

sys.modules["__main__"].carry_out = lambda *_: None  # type: ignore[attr-defined]
