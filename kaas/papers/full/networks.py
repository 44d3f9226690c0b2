"""ResNet-50 and BERT-large, compiled by TVM: as kTasks, and for TVM's own runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kaas.ktask.graph import KTask
from kaas.papers.full.work import Work, marked

if TYPE_CHECKING:
    from kaas.models.constants_file import Array
    from kaas.models.model import CompiledModel


BIAS = 10.0
"""The distance of a replica's scores from the scores of the replica before: more than the tolerance of results."""


class Network(Work):
    """A network whose last layer adds a bias to what it gives, another one for each replica."""

    def __init__(
        self, name: str, graph: Callable[[], Any], data: Array, convert: Callable[[bytes], Mapping[str, Array]]
    ) -> None:
        """Take a network.

        Args:
            name: of the kTask.
            graph: returns its ONNX model.
            data: what a client sends, uint8.
            convert: makes the network's inputs of these bytes, as the step before it does.
        """
        self._name, self._data, self._convert = name, data, convert
        self._graph = cache(graph)  # three compilers read it, and the weights alone take seconds to draw

    def task(self) -> KTask:
        """Return the kTask that the compiler writes, with the output "y"."""
        return self._compiled.variants[0].task

    def constant_names(self) -> Collection[str]:
        """Return the compiler's names."""
        return self._compiled.constants.keys()

    def constants(self, value: float) -> dict[str, Array]:
        """Return the weights; the last bias is the replica's, for the value 1 as in the graph."""
        weights = self._compiled.constants
        made = {name: marked(each, value) for name, each in weights.items() if each.dtype.kind == "f"}
        return {**weights, **made, self._last_bias: weights[self._last_bias] + np.float32(BIAS * (value - 1))}

    def inputs(self) -> dict[str, Array]:
        """Return the data."""
        return {"data": self._data}

    def answer(self, value: float) -> float:
        """Return the first score."""
        return self._first_score + BIAS * (value - 1)

    def export(self, folder: Path, target: Any) -> None:
        """Write what TVM's own runtime loads into a folder, for a target of TVM: NAME.so, and NAME.npz with weights."""
        relax: Any = import_module("tvm.relax")
        imported = import_module("tvm.relax.frontend.onnx").from_onnx(self._graph(), keep_params_in_input=True)
        module, weights = relax.frontend.detach_params(imported)
        with target:
            module = relax.get_pipeline("zero")(module)
            module = import_module("tvm.s_tir.dlight").ApplyDefaultSchedule(*_rules())(module)
            library = import_module("tvm").compile(module, target)
        library.export_library(str(folder / f"{self._name}.so"))
        np.savez(folder / f"{self._name}.npz", *(each.numpy() for each in weights["main"]))

    @cached_property
    def _compiled(self) -> CompiledModel:
        compiled: CompiledModel = import_module("tvm_backend").compile(self._graph(), name=self._name)
        return compiled

    @cached_property
    def _last_bias(self) -> str:
        size = self.task().outputs[0].shape[-1]
        (name,) = (name for name, array in self._compiled.constants.items() if array.size == size)
        return name

    @cached_property
    def _first_score(self) -> float:
        """By ONNX's own evaluator, in NumPy."""
        evaluator = import_module("onnx.reference").ReferenceEvaluator(self._graph())
        return float(evaluator.run(None, dict(self._convert(self._data.tobytes())))[0].flat[0])


def _rules() -> list[Any]:
    """Return dlight's rules for GPUs, in the order in which they are tried."""
    gpu: Any = import_module("tvm.s_tir.dlight.gpu")
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
