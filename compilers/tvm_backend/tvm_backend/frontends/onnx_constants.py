"""Results of nodes that depend on constants and shapes alone, computed by ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvm_backend.constants import Array

SMALL = 4096
"""The most elements of a result that is computed here. TVM folds larger constants, and is faster."""

ABOUT_SHAPES = {"Shape", "Size"}
NOT_COMPUTED = {
    "Bernoulli", "Dropout", "If", "Loop", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Scan",
}  # fmt: skip
"""Operators with random results, and operators that run other nodes."""


class Values:
    """The tensors of a graph whose values are known.

    Args:
        values: the small initializers.
        opsets: of the model.
    """

    def __init__(self, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]) -> None:
        self.values, self.opsets = dict(values), opsets

    def alias(self, name: str, other: str) -> None:
        """Give a tensor the value of another, if that is known."""
        if other in self.values:
            self.values[name] = self.values[other]

    def computed(self, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, Array]:
        """Return the values of a node's outputs, and remember them; nothing if they are unknown, large or not computed.

        Args:
            node: the node.
            shapes: the shapes of its inputs, None for unknown ones.
        """
        if node.op_type in NOT_COMPUTED or _large_constant(node):
            return {}
        given = {name: self._given(node, name, shapes.get(name)) for name in node.input if name}
        if any(value is None for value in given.values()):
            return {}
        try:
            found = self._evaluated(node, {name: value for name, value in given.items() if value is not None})
        except Exception:  # noqa: BLE001 - TVM converts nodes that the reference cannot compute, or reports an error
            return {}
        if any(value.size > SMALL or value.dtype.kind not in "biuf" for value in found.values()):
            return {}
        self.values.update(found)
        return found

    def _given(self, node: onnx.NodeProto, name: str, shape: tuple[int, ...] | None) -> Array | None:
        if node.op_type in ABOUT_SHAPES and shape is not None:
            return np.broadcast_to(np.float32(0), shape)
        return self.values.get(name)

    def _evaluated(self, node: onnx.NodeProto, given: Mapping[str, Array]) -> dict[str, Array]:
        from onnx.reference import ReferenceEvaluator  # loads all operators: slow, and often not needed

        outputs = [name for name in node.output if name]
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "node", inputs, results))
        del model.opset_import[:]
        model.opset_import.extend(self.opsets)
        made = ReferenceEvaluator(model).run(outputs, dict(given))
        return {name: np.asarray(value) for name, value in zip(outputs, made, strict=True)}


def _large_constant(node: onnx.NodeProto) -> bool:
    tensors = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    return node.op_type == "Constant" and any(np.prod(tensor.dims) > SMALL for tensor in tensors)
