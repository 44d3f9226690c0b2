"""Products of two kernels: the first leaves sums in a workspace, the last makes C of them (device/finish.cuh)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from struct import Struct as Packer
from typing import Final, NamedTuple

import kaas
from cutlass_blas.batches import Piece, pointer, target
from cutlass_blas.operands import DTYPE_BYTES, SUM_DTYPES, Operand
from kaas import Buffer, In, InOut, Kernel, Library, Out, Pointers, Scalar

_PARAMS: Final = Packer("<40x6q2i16s16s")
"""As device/finish.cuh has them: 5 pointers; m, n, slices, count, leading, stride; table, activation; alpha; beta."""
_SUMS, _C, _BIAS, _A, _B = 0, 8, 16, 24, 32
_ALPHA, _BETA = 96, 112
RELU, GELU = 1, 2
"""Activations, as device/finish.cuh numbers them."""
_THREADS: Final = 256
_BLOCKS: Final = 4_096
"""The most blocks in each dimension; each thread continues beyond the grid."""


class Finish(NamedTuple):
    """The last kernel of a product, without its buffers.

    Fields:
        empty: True if there is no element to write.
    """

    symbol: str
    params: bytes
    grid: tuple[int, int, int]
    empty: bool


@cache
def _library() -> Library:
    from cutlass_blas.provider import library

    return library("finish")


def workspace(c: Buffer, kind: str, count: int, slices: int, m: int, n: int) -> Buffer:
    """Return the buffer of the sums, [count][slices][m][n]. Products of one shape into c share it."""
    dtype = SUM_DTYPES[kind]
    return Buffer(f"{c.name} sums {count}x{slices}x{m}x{n} {dtype}", (count, slices, m, n), dtype)


def finish(
    c: Operand,
    sizes: tuple[int, int, int],
    slices: int,
    activation: int,
    alpha: bytes,
    beta: bytes,
) -> Finish:
    """Return the last kernel for C.

    `sizes` are m, n and count. `slices` is the number of sums for each element; with 0 there is no product, and C is
    only scaled.
    """
    m, n, count = sizes
    stride = c.stride if c.count is not None else 0
    params = _PARAMS.pack(m, n, slices, count, c.ld, stride, c.table, activation, alpha, beta)
    blocks = max(1, min(_BLOCKS, -(-m * n // _THREADS)))
    return Finish(f"finish_{c.dtype}", params, (blocks, max(1, min(_BLOCKS, count)), 1), m * n * count == 0)


def finishing(
    last: Finish,
    c: Operand,
    count: int,
    fresh: Set[str],
    sums: Buffer | None,
    bias: Buffer | None,
    unread: tuple[Operand, ...],
    scalars: Mapping[str, Scalar],
) -> Kernel:
    """Return the last kernel for given buffers.

    The kernel writes the buffers named in `fresh` without reading them. `sums` is the workspace, None without a
    product. The operands in `unread` stay inputs of the kTask although no kernel reads them. `scalars` are those that
    each invocation chooses, by "alpha" and "beta".
    """
    everything = Piece(0, max(count, 1), 0, 0)
    element_bytes = 0 if last.empty else DTYPE_BYTES[c.dtype]  # an empty matrix may lie at the very end of its buffer
    fields: dict[int, In | Out | InOut | Pointers] = {_C: target(c, everything, 0, element_bytes, c.table, fresh)}
    if sums is not None:
        fields[_SUMS] = In(sums)
    if bias is not None:
        fields[_BIAS] = In(bias)
    for at, operand in zip((_A, _B), unread, strict=False):
        fields[at] = pointer(In, operand, everything, 0, 0, operand.table)
    patched = {_ALPHA if name == "alpha" else _BETA: scalar for name, scalar in scalars.items()}
    return Kernel(_library(), last.symbol, last.grid, _THREADS, (kaas.Struct(last.params, fields, patched),))
