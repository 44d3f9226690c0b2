"""Kernels that touch memory in other ways than the workloads with a bar (kernels/patterns.cu), and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kaas
from benchmarks.isolation.workloads import constant, random
from kaas.executor.executor import RunRequest

CODE = kaas.Library.from_file(Path(__file__).parent.parent / "kernels" / "patterns.ptx")
Array = np.ndarray[Any, Any]
Dim = int | tuple[int, int]
BLOCK, TILE, SORTED, IN_A_ROW, LAUNCHES, TINY = 256, 32, 32, 16, 1000, 32


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kernel, the grid and the block of its launches, its inputs in the order of its parameters, and its output.

    numbers: the parameters after the output.
    """

    symbol: str
    grid: Dim
    block: Dim
    inputs: Mapping[str, Array]
    expected: Array
    numbers: Sequence[int] = ()
    in_place: bool = False
    launches: int = 1

    def request(self) -> RunRequest:
        """Return a request, whose inputs stay on the device."""
        buffers = [kaas.Buffer(name, value.shape, value.dtype.name) for name, value in self.inputs.items()]
        zero = "zero" if self.in_place else None
        out = kaas.Buffer("out", self.expected.shape, self.expected.dtype.name, init=zero)
        args: list[Any] = [*map(kaas.In, buffers), (kaas.InOut if self.in_place else kaas.Out)(out)]
        args += map(kaas.u32, self.numbers)
        kernels = [kaas.Kernel(CODE, self.symbol, self.grid, self.block, args)] * self.launches
        inputs = {name: constant(name, value) for name, value in self.inputs.items()}
        return RunRequest(kaas.KTask(kernels, [out]), inputs, {})


def copy(n: int = 1 << 22) -> Pattern:
    """Return the copy of an array."""
    x = random(n)
    return Pattern("copy", n // BLOCK, BLOCK, {"x": x}, x, [n])


def transpose(side: int = 1024) -> Pattern:
    """Return the transpose of a matrix, in tiles."""
    x, tiles = random(side, side), side // TILE
    return Pattern("transpose", (tiles, tiles), (TILE, 8), {"x": x}, np.ascontiguousarray(x.T), [side])


def gather_scatter(n: int = 1 << 19) -> Pattern:
    """Return a copy in which each element goes from a place at random to a place at random."""
    x, source, target = random(n), _places(n), _places(n)[::-1].copy()
    expected = np.empty_like(x)
    expected[target] = x[source]
    inputs = {"x": x, "from": source, "to": target}
    return Pattern("gather_scatter", n // BLOCK, BLOCK, inputs, expected, [n])


def histogram(n: int = 1 << 20) -> Pattern:
    """Return the counts of 256 values, by atomic additions in global memory."""
    x = _places(n)
    counts = np.bincount(x % BLOCK, minlength=BLOCK).astype(np.uint32)
    return Pattern("histogram", n // BLOCK, BLOCK, {"x": x}, counts, [n], in_place=True)


def shared_sum(n: int = 1 << 21) -> Pattern:
    """Return the sum of each block, by a tree in shared memory."""
    x = np.ones(n, np.float32)
    return Pattern("shared_sum", n // BLOCK, BLOCK, {"x": x}, np.full(n // BLOCK, BLOCK, np.float32))


def stencil(side: int = 2048) -> Pattern:
    """Return the means of five neighbours."""
    x = np.ones((side, side), np.float32)
    return Pattern("stencil", (side // TILE, side // 8), (TILE, 8), {"x": x}, x, [side])


def scan(n: int = 1 << 20) -> Pattern:
    """Return the running sums of each block, in shared memory."""
    x = _places(n)
    sums = np.cumsum(x.reshape(-1, BLOCK), axis=1, dtype=np.uint32).reshape(-1)
    return Pattern("scan", n // BLOCK, BLOCK, {"x": x}, sums)


def naive_matmul(side: int = 512) -> Pattern:
    """Return the product of matrices of which one is the unit, by one thread for each element."""
    a = random(side, side)
    inputs = {"a": a, "b": np.eye(side, dtype=np.float32)}
    return Pattern("naive_matmul", (side // TILE, side // 8), (TILE, 8), inputs, a, [side])


def sparse_product(rows: int = 1 << 16) -> Pattern:
    """Return the product of a sparse matrix and ones: the values are whole, so no sum is rounded."""
    count = rows * IN_A_ROW
    values = (_places(count) % 8).astype(np.float32)
    inputs: dict[str, Array] = {
        "starts": np.arange(0, count + 1, IN_A_ROW, dtype=np.uint32),
        "columns": _places(count) % rows,
        "values": values,
        "x": np.ones(rows, np.float32),
    }
    return Pattern("sparse_product", rows // BLOCK, BLOCK, inputs, values.reshape(rows, -1).sum(axis=1), [rows])


def local_sort(n: int = 1 << 19) -> Pattern:
    """Return each 32 numbers in order, sorted by a thread in its local memory."""
    x = _places(n)
    sorted_ = np.sort(x.reshape(-1, SORTED), axis=1).reshape(-1)
    return Pattern("local_sort", n // SORTED // BLOCK, BLOCK, {"x": x}, sorted_, [n])


def tiny(launches: int = LAUNCHES) -> Pattern:
    """Return a graph of kernels with a warp each, one after the other."""
    x: Array = np.zeros(TINY, np.uint32)
    for _ in range(launches):
        x = 3 * x + np.arange(TINY, dtype=np.uint32)
    return Pattern("tiny", 1, TINY, {}, x, in_place=True, launches=launches)


PATTERNS: Mapping[str, Callable[..., Pattern]] = {
    made.__name__: made
    for made in (
        copy,
        transpose,
        gather_scatter,
        histogram,
        shared_sum,
        stencil,
        scan,
        naive_matmul,
        sparse_product,
        local_sort,
        tiny,
    )
}


def _places(n: int) -> Array:
    """Return the numbers below n, in an order at random, the same each time."""
    return np.random.default_rng(1).permutation(n).astype(np.uint32)
