"""Inputs made from a function's own description, for callers that have no data at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import numpy_dtype

if TYPE_CHECKING:
    import numpy as np


def payload(inputs: Iterable[Buffer], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return an array for each input, by name, in the input's dtype and shape.

    Real numbers are between 0 and 1, and so are both parts of complex ones. Integers and booleans are 0 or 1, since
    many kernels take integers as indices.

    Args:
        inputs: buffers, as `kaas.KTask.inputs` has them.
        seed: other seeds give other values; the same one gives the same values.
    """
    import numpy as np

    random = np.random.default_rng(seed)

    def values(buffer: Buffer) -> np.ndarray[Any, Any]:
        dtype = numpy_dtype(buffer.dtype)
        if dtype.kind in "biu":
            return random.integers(0, 2, buffer.shape).astype(dtype)
        if dtype.kind == "c":
            return (random.random(buffer.shape) + 1j * random.random(buffer.shape)).astype(dtype)
        return random.random(buffer.shape, np.float32).astype(dtype)

    return {buffer.name: values(buffer) for buffer in inputs}
