"""A module that cannot be imported, for tests."""

from __future__ import annotations

raise LookupError("as it must be")
