"""A case of the corpus: kernels that a compiler made, launched on arrays, and the results that NumPy expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
Array = NDArray[Any]
Arrays = dict[str, Any]
Extent = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exact:
    """Equal to the last bit; not-a-number is not-a-number."""

    def check(self, name: str, found: Array, expected: Array) -> None:
        np.testing.assert_array_equal(found, expected, err_msg=name)


@dataclass(frozen=True, slots=True)
class Close:
    """|found - expected| <= rtol * |expected| + atol * the largest |expected|; why: where the difference comes from."""

    why: str
    rtol: float = 0.0
    atol: float = 0.0

    def check(self, name: str, found: Array, expected: Array) -> None:
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(found, expected, self.rtol, self.atol * largest, err_msg=f"{name} ({self.why})")


@dataclass(frozen=True, slots=True)
class Ulps:
    """At most this many units in the last place apart; why says where the difference comes from."""

    why: str
    count: int

    def check(self, name: str, found: Array, expected: Array) -> None:
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), ~known, err_msg=name)
        np.testing.assert_array_max_ulp(found[known], expected[known].astype(found.dtype), self.count)


Tolerance = Exact | Close | Ulps
EXACT = Exact()


@dataclass(frozen=True, slots=True)
class At:
    """The address of a byte of an array."""

    name: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct by value: its bytes, and which array's address stands at which offsets."""

    blob: bytes
    pointers: Mapping[int, str | At] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. args: an array's name or At for its address, a NumPy scalar for its value, a Struct."""

    symbol: str
    grid: Extent
    block: Extent
    args: Sequence[Any]
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """image: PTX, relative to this folder. arrays: what device memory holds before the launches, by name.

    expected: what some of them hold afterwards, by NumPy; an array under test starts with other values. tolerance: of
    numbers with a fraction; all others are exact.
    """

    image: str
    arrays: Arrays
    launches: Sequence[Launch]
    expected: Arrays
    tolerance: Tolerance = EXACT

    def check(self, found: Mapping[str, Array]) -> None:
        for name, wanted in self.expected.items():
            assert found[name].dtype == wanted.dtype, (name, found[name].dtype, wanted.dtype)
            tolerance = self.tolerance if wanted.dtype.kind in "fc" else EXACT
            tolerance.check(name, found[name], wanted.reshape(found[name].shape))


Cases = Mapping[str, Callable[[], Case]]
"""Made when they run: most of the time goes into what NumPy says."""


def triple(extent: Extent) -> tuple[int, int, int]:
    """An extent with the dimensions that it leaves out."""
    x, y, z = (*((extent,) if isinstance(extent, int) else extent), 1, 1)[:3]
    return x, y, z


def blocks(n: int, block: int) -> int:
    """Return the number of blocks that cover n threads."""
    return -(-n // block)
