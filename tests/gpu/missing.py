"""Skips tests that need kernels which a machine without a compiler lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kaas.errors import MissingPackage


@contextmanager
def skipped_if_missing() -> Iterator[None]:
    """Skip a test that needs a kernel of the BLAS library which is not built and cannot be built."""
    try:
        yield
    except MissingPackage as error:
        pytest.skip(error.message)
