"""Helpers of the tests of lowering: a module compiled and run on the software GPU, without a frontend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend import nn

import kaas
from tvm_backend import lowering, targets, tasks
from tvm_backend.constants import Array
from tvm_backend.frontends.imported import EntryPoint, Imported
from tvm_backend.library import library

TARGET = targets.parsed("ptx")


class Compiled:
    """A module's functions as kTasks.

    Args:
        outputs: the number of each function's results, or their names.
        constants: the module's parameters by name.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        outputs: int | Sequence[str] = 1,
        constants: Mapping[str, Array] | None = None,
        schedule: lowering.Schedule = lowering.by_dlight,
    ) -> None:
        names = tuple(f"out{n}" for n in range(outputs)) if isinstance(outputs, int) else tuple(outputs)
        functions = [(v.name_hint, f) for v, f in module.functions.items() if isinstance(f, relax.Function)]
        entries = tuple(
            EntryPoint(name, 1, tuple(p.name for p in function.params), names) for name, function in sorted(functions)
        )
        self.imported = Imported("network", module, entries, constants or {})
        self.lowered = lowering.lowered(module, TARGET, schedule, constants)
        self.library = library(self.lowered.source, TARGET)
        self.variants, self.constants = tasks.tasks(self.lowered, self.imported, self.library)

    @property
    def variant(self) -> kaas.Variant:
        (only,) = self.variants
        return only

    @property
    def kernels(self) -> tuple[kaas.Kernel, ...]:
        return self.variant.task.kernels

    def run(self, *inputs: Array, variant: int = 0) -> list[Array]:
        """Return the results for these inputs, in order."""
        chosen = self.variants[variant]
        read = {buffer.name for buffer in chosen.task.inputs}
        given = dict(zip((buffer.name for buffer in chosen.inputs), inputs, strict=True)) | self.constants
        return list(kaas.run_local(chosen.task, {n: a for n, a in given.items() if n in read}).values())


def bound(network: nn.Module, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> tuple[Any, dict[str, Array]]:
    """Return a network's `forward` with random parameters bound, and the parameters by name."""
    spec = {"forward": {name: nn.spec.Tensor(list(shape), "float32") for name, shape in shapes.items()}}
    module, parameters = network.export_tvm(spec=spec)
    random = np.random.default_rng(seed)
    weights = {name: random.standard_normal(p.shape, dtype=np.float32) / 8 for name, p in parameters}
    return relax.transform.BindParams("forward", weights)(module), weights


def function(build: Callable[..., Any], *parameters: tuple[Sequence[int], str]) -> tvm.IRModule:
    """Return a module whose function `main` takes tensors x0, x1, … of these shapes and dtypes.

    Args:
        build: returns the result, from a relax.BlockBuilder and the parameters.
    """
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{n}", relax.TensorType(shape, dtype)) for n, (shape, dtype) in enumerate(parameters)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *given))
        builder.emit_func_output(result)
    return builder.get()


def noise(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def close(given: Array, expected: Any) -> None:
    assert given.shape == np.shape(expected)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


def exact(given: Array, expected: Any) -> None:
    np.testing.assert_array_equal(given, expected)
    assert given.dtype == np.asarray(expected).dtype
