"""A Triton kernel, the softmax of each row, for the software GPU and for Triton's interpreter."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from kaas.ktask.arguments import Buffer, In, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Library

ROWS, COLUMNS = 256, 1000


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):  # noqa: N803
    """Write the softmax of each row of x to y."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * columns + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + i, powers / tl.sum(powers, axis=0), mask=inside)


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    """Return x, float32, 256 rows of 1,000."""
    return {"x": np.random.default_rng(6).normal(scale=4, size=(ROWS, COLUMNS)).astype(np.float32)}


def build() -> KTask:
    """Return the kTask: input "x", output "y"."""
    library = Library.from_triton(softmax, "*fp32 *fp32 i32", {"BLOCK": triton.next_power_of_2(COLUMNS)})
    x, y = (Buffer(name, (ROWS, COLUMNS), "float32") for name in ("x", "y"))
    return KTask([library.kernel(grid=ROWS, args={"x": In(x), "y": Out(y), "columns": COLUMNS})], [y])


def interpret() -> np.ndarray[Any, Any]:
    """Return y from Triton's interpreter, which takes tensors of PyTorch. Needs TRITON_INTERPRET=1."""
    import torch

    x = torch.from_numpy(inputs()["x"])
    y = torch.empty_like(x)
    softmax[(ROWS,)](x, y, COLUMNS, BLOCK=triton.next_power_of_2(COLUMNS))
    found: np.ndarray[Any, Any] = y.numpy()
    return found
