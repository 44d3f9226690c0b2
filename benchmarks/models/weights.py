"""The parameters of every model; each depends on its name and shape alone."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LAST_OF_BRANCH = ("bn3.weight", "out.weight", "narrow.weight")


def weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return one parameter by its name in PyTorch.

    Products and convolutions keep the magnitude of their inputs, normalisations change it a little, and biases are
    small. So values stay near one at any depth, and the largest element of a result is far above the next.
    """
    spread = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    _, _, kind = name.rpartition(".")
    if kind == "running_var":
        return 1 + np.abs(spread) * np.float32(0.2)
    # the last step of a residual branch is small, so that sums do not grow and words stay different
    size = np.float32(0.25 if name.endswith(LAST_OF_BRANCH) else 1)
    if len(shape) > 1:
        return size * spread * np.float32(np.sqrt(2 / np.prod(shape[1:])))
    if kind != "weight":
        return spread * np.float32(0.1)
    return size * (1 + spread * np.float32(0.1))


def normal(name: str, *shape: int) -> NDArray[np.float32]:
    """Return an input with a standard normal distribution."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)


def integers(name: str, limit: int, *shape: int) -> NDArray[np.int64]:
    """Return an input of whole numbers below a limit."""
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, limit, shape)
