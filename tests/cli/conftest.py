"""The command line is tested against the pool of the tests of `kaas.api`."""

from __future__ import annotations

from tests.api.conftest import pool

__all__ = ["pool"]
