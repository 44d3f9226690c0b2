"""cGEMM and the micro-benchmark, by the BLAS library, and the Jacobi method."""

from __future__ import annotations

import math
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kaas.ktask.arguments import Buffer, In, Out, u32
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.papers.full.work import Work, marked
from kaas.papers.workloads import MOST_REPLICAS

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

SWEEPS = 3000
WARP, BLOCK = 32, 256
KERNEL = Path(__file__).with_name("jacobi.ptx")


class Products(Work):
    """A matrix that comes with each request, times constant matrices, one after the other."""

    def __init__(self, name: str, dtype: str, rows: int, *sides: int) -> None:
        """Take the sizes: the input is rows x sides[0], a constant sides[n] x sides[n + 1]."""
        self._name, self._dtype, self._rows, self._sides = name, dtype, rows, sides

    def task(self) -> KTask:
        """Return the products as kernels of the BLAS library; input "x", output "y"."""
        gemm: Any = import_module("cutlass_blas").gemm
        last, kernels, before = len(self._sides) - 2, list[Kernel](), self._buffer("x", self._rows, self._sides[0])
        for number, name in enumerate(self.constant_names()):
            constant = self._buffer(name, *self._sides[number : number + 2])
            after = self._buffer("y" if number == last else f"t{number}", self._rows, self._sides[number + 1])
            kernels += gemm(before, constant, after)
            before = after
        return KTask(kernels, [before], name=self._name)

    def constant_names(self) -> Collection[str]:
        """Return w0, w1, ..."""
        return [f"w{number}" for number in range(len(self._sides) - 1)]

    def constants(self, value: float) -> dict[str, Array]:
        """Return matrices whose columns add up to the value."""
        made: dict[str, Array] = {}
        for number, name in enumerate(self.constant_names()):
            rows, columns = self._sides[number : number + 2]
            made[name] = marked(np.full((rows, columns), value / rows, self._dtype), value + MOST_REPLICAS * number)
        return made

    def inputs(self) -> dict[str, Array]:
        """Return a matrix of ones."""
        return {"x": np.ones((self._rows, self._sides[0]), self._dtype)}

    def answer(self, value: float) -> float:
        """Return what each product multiplies a matrix of equal numbers by."""
        return float(value ** (len(self._sides) - 1))

    def _buffer(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, shape, self._dtype)


class Solver(Work):
    """A · x = b by the Jacobi method: A of float32, x of float64, nothing constant (§5.3)."""

    def __init__(self, unknowns: int, sweeps: int = SWEEPS) -> None:
        """Take the number of unknowns, and of the method's sweeps, an even number."""
        self._unknowns, self._sweeps = unknowns, sweeps

    def task(self) -> KTask:
        """Return an iteration of two sweeps, from x to t and back; inputs "a" and "b", output "x"."""
        library, count = Library.from_file(KERNEL), self._unknowns
        a, b = Buffer("a", (count, count), "float32"), Buffer("b", count, "float32")
        x, t = Buffer("x", count, "float64", init="zero"), Buffer("t", count, "float64")
        grid = math.ceil(count * WARP / BLOCK)
        sweeps = [
            Kernel(library, "jacobi_sweep", grid, BLOCK, [In(a), In(b), In(old), Out(new), u32(count)])
            for old, new in ((x, t), (t, x))
        ]
        return KTask(sweeps, [x], iterations=self._sweeps // 2, name="jacobi")

    def constant_names(self) -> Collection[str]:
        """Return none."""
        return ()

    def constants(self, value: float) -> dict[str, Array]:  # noqa: ARG002 - there are none
        """Return none."""
        return {}

    def inputs(self) -> dict[str, Array]:
        """Return a system that ones solve; a diagonal outweighs its row by 1 %, as an error that falls slowly."""
        a = np.random.default_rng(0).uniform(0, 1, (self._unknowns, self._unknowns)).astype(np.float32)
        np.fill_diagonal(a, 0)
        np.fill_diagonal(a, a.sum(axis=1) * 1.01)
        return {"a": a, "b": a.sum(axis=1)}

    def answer(self, value: float) -> float:  # noqa: ARG002 - each replica has the same system
        """Return one."""
        return 1.0
