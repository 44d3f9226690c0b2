"""The numbers that random programs start from."""

from __future__ import annotations

from functools import cache

import numpy as np

from softgpu.tests.compiler.random.ops import Array
from softgpu.tests.compiler.random.tree import TABLE_BYTES

_EDGES = np.array(
    [0, 1, 2, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000, 0x7FC00000, 0x80000001, 255],
    np.uint32,
)


@cache
def table_words() -> tuple[int, ...]:
    """The .const table of every program."""
    return tuple(_words(TABLE_BYTES // 4, 99).tolist())


def random_bytes(nbytes: int, seed: int) -> Array:
    """Words of which many are small, and many lie at the end of some range."""
    return _words((nbytes + 3) // 4, seed).view(np.uint8)[:nbytes].copy()


def _words(count: int, seed: int) -> Array:
    random = np.random.default_rng(seed)
    words = random.integers(0, 1 << 32, count, np.uint32)
    kind = random.integers(0, 4, count)
    words = np.where(kind == 0, words & np.uint32(31), words)
    words = np.where(kind == 1, _EDGES[words % len(_EDGES)], words)
    fractions = ((words % 4096).astype(np.float32) * np.float32(1.5) - np.float32(99)).view(np.uint32)
    return np.where(kind == 2, fractions, words)
