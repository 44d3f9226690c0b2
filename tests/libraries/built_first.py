"""The kernels that `make test` needs: each takes nvcc 20 seconds, so it builds them while other tests run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cutlass_blas.instances import Instance

FIRST = frozenset(Path(__file__).with_suffix(".txt").read_text().split())


def sample(instances: Iterable[Instance]) -> list[Any]:
    """Return the instances as cases of a parametrized test, of which all that are not built first are marked `full`."""
    return [each if each.name in FIRST else pytest.param(each, marks=pytest.mark.full) for each in instances]
