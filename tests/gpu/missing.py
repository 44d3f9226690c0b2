"""What a machine without a compiler lacks: tests that need it are skipped there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kaas.errors import MissingPackage


@contextmanager
def skipped_if_missing() -> Iterator[None]:
    """Skips a test that asks for a kernel of the BLAS library which is not there and cannot be built."""
    try:
        yield
    except MissingPackage as error:
        pytest.skip(error.message)
