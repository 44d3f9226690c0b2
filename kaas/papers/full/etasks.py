"""The workloads as eTasks, as a user writes them for a GPU: with CuPy, and with TVM's own runtime for the networks.

Each makes or loads its constants once, when its process starts.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kaas.papers.full.matrices import SWEEPS, Products
from kaas.papers.full.works import CGEMM, FOLDER, MICRO

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

VALUE = 1.0
"""The value of an eTask's constants: each client has a process of its own, with memory of its own."""


class ProductsByCupy:
    """A matrix times constant matrices, one after the other. work: the sizes."""

    work: ClassVar[Products]

    def __init__(self) -> None:
        self._cupy: Any = import_module("cupy")
        self._constants = [self._cupy.asarray(each) for each in self.work.constants(VALUE).values()]

    def __call__(self, x: Array) -> Array:
        """Return the last product, on the host."""
        product = self._cupy.asarray(x)
        for constant in self._constants:
            product = product @ constant
        result: Array = self._cupy.asnumpy(product)
        return result


class CgemmByCupy(ProductsByCupy):
    """cGEMM."""

    work = CGEMM


class MicroByCupy(ProductsByCupy):
    """The micro-benchmark of §5.2."""

    work = MICRO


def jacobi(a: Array, b: Array) -> Array:
    """Return the solution of a · x = b, float64, by as many sweeps as the kTask's."""
    cupy: Any = import_module("cupy")
    there, right = cupy.asarray(a).astype(np.float64), cupy.asarray(b).astype(np.float64)
    diagonal = cupy.diag(there).copy()
    x = cupy.zeros_like(right)
    for _ in range(SWEEPS):
        x = (right - (there @ x - diagonal * x)) / diagonal
    result: Array = cupy.asnumpy(x)
    return result


class NetworkByTvm:
    """A network of a library that TVM exported, on TVM's virtual machine. network: its name."""

    network: ClassVar[str]
    kind: ClassVar[str] = "cuda"

    def __init__(self) -> None:
        tvm: Any = import_module("tvm")
        folder = Path(os.environ[FOLDER])
        self._tensor, self._device = tvm.runtime.tensor, tvm.device(self.kind, 0)
        library = tvm.runtime.load_module(str(folder / f"{self.network}.so"))
        self._machine = import_module("tvm.relax").VirtualMachine(library, self._device)
        with np.load(folder / f"{self.network}.npz") as weights:
            self._weights = [self._tensor(each, self._device) for each in weights.values()]

    def __call__(self, **inputs: Array) -> Array:
        """Return the network's output, float32, for its inputs by name, in the network's order."""
        given = [self._tensor(each, self._device) for each in inputs.values()]
        result: Array = self._machine["main"](*given, *self._weights).numpy()
        return result


class Resnet50ByTvm(NetworkByTvm):
    """ResNet-50."""

    network = "resnet50"

    def __call__(self, x: Array) -> Array:  # type: ignore[override]
        """Return the scores of classes for a picture."""
        return super().__call__(x=x)


class BertByTvm(NetworkByTvm):
    """BERT-large."""

    network = "bert"

    def __call__(self, tokens: Array, segments: Array, mask: Array) -> Array:  # type: ignore[override]
        """Return the scores of each word for a question and a text."""
        return super().__call__(tokens=tokens, segments=segments, mask=mask)
