"""What programs of outcomes share with the tests of servers."""

from __future__ import annotations

from tests.remote.conftest import serve

__all__ = ["serve"]
