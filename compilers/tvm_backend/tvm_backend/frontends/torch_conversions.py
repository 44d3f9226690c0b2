"""Conversions of PyTorch's operators that TVM has wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvm_backend.frontends.parts import is_static


class Importer(ExportedProgramImporter):  # type: ignore[misc]
    def _index_tensor(self, node: fx.Node) -> Any:
        """Indices for some axes, which go together: TVM would combine each with each where an axis has none."""
        data, indices = self.retrieve_args(node)[:2]
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        if len(axes) in (1, len(indices)):
            return super()._index_tensor(node)
        rest = [axis for axis in range(data.ty.ndim) if axis not in axes]
        emit = self.block_builder.emit
        found = emit(relax.op.index_tensor(
            emit(relax.op.permute_dims(data, axes + rest)), [indices[axis] for axis in axes]
        ))  # fmt: skip
        if axes[-1] - axes[0] >= len(axes):
            return found  # with other axes between those indexed, what was indexed stands first
        indexed, before = found.ty.ndim - len(rest), axes[0]
        order = [*range(indexed, indexed + before), *range(indexed), *range(indexed + before, found.ty.ndim)]
        return emit(relax.op.permute_dims(found, order))

    def _upsample_nearest2d(self, node: fx.Node) -> Any:
        """The element at the rounded down coordinate: TVM would take the middle of each. It knows sizes only, and
        PyTorch computes coordinates by the factors, if it has these."""
        data, _, factors = self.retrieve_args(node)
        size = [int(extent) for extent in node.meta["val"].shape[2:]]
        before = [int(extent) for extent in data.ty.shape.values[2:]]
        if factors and any(old * factor != new for old, factor, new in zip(before, factors, size, strict=True)):
            raise ValueError(f"by {factors} {before} does not become whole numbers of elements")
        larger = relax.op.image.resize2d(
            data, size, method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"
        )
        return self.block_builder.emit(larger)


def difference(made: Any, node: fx.Node) -> str | None:
    """What tells a conversion's result from PyTorch's, where both are tensors of known shapes."""
    expected = node.meta.get("val")
    if not isinstance(made, relax.Expr) or not isinstance(expected, torch.Tensor):
        return None
    if not isinstance(made.ty, relax.TensorType) or not is_static(made.ty):
        return None
    shape, dtype = [int(size) for size in made.ty.shape.values], str(made.ty.dtype)
    wanted, kind = list(expected.shape), str(expected.dtype).removeprefix("torch.")
    if dtype == kind and (shape == wanted or not all(isinstance(size, int) for size in wanted)):
        return None
    return f"TVM makes {dtype}{shape} of it, PyTorch {kind}{wanted}"
