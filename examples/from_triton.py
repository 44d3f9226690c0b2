"""A Triton kernel, compiled ahead of time: the softmax of each row.

    python examples/from_triton.py

The library knows Triton's choices (threads, shared memory, the scratch pointers that it appends): a kernel takes only
the function's own arguments. Needs Triton; no GPU.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

import kaas


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * columns + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + i, powers / tl.sum(powers, axis=0), mask=inside)


def build(rows: int, columns: int) -> kaas.KTask:
    """Return the kTask: input "x", output "y"."""
    library = kaas.Library.from_triton(softmax, "*fp32 *fp32 i32", {"BLOCK": triton.next_power_of_2(columns)})
    x, y = (kaas.Buffer(name, (rows, columns), "float32") for name in ("x", "y"))
    kernel = library.kernel(grid=rows, args={"x": kaas.In(x), "y": kaas.Out(y), "columns": columns})
    return kaas.KTask([kernel], outputs=[y], name="softmax")


def main(rows: int = 50, columns: int = 300) -> None:
    x = np.random.default_rng(6).normal(scale=4, size=(rows, columns)).astype(np.float32)
    y = kaas.run_local(build(rows, columns), {"x": x})["y"]
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)
    print(f"softmax of {rows} rows of {columns}: they sum to {y.sum(axis=1).min():.6f} .. {y.sum(axis=1).max():.6f}")


if __name__ == "__main__":
    main()
