"""What nodes compute from constants and shapes alone, by ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]

SMALL = 4096
"""Elements of what is computed here. Larger constants are folded by TVM, faster."""

ABOUT_SHAPES = {"Shape", "Size"}
WITHOUT_RESULT = {
    "Bernoulli", "Dropout", "If", "Loop", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Scan",
}  # fmt: skip
"""What gives something else each time, or runs other nodes."""


class Values:
    """The tensors of a graph whose values are known.

    Args:
        values: initializers, the small ones.
        opsets: of the model.
    """

    def __init__(self, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]) -> None:
        self.values, self.opsets = dict(values), opsets

    def alias(self, name: str, other: str) -> None:
        if other in self.values:
            self.values[name] = self.values[other]

    def computed(self, node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, Array]:
        """The node's outputs, or nothing: if they are not known, or large, or not computed here.

        Args:
            shapes: of its inputs, where they are known.
        """
        if node.op_type in WITHOUT_RESULT or _large_constant(node):
            return {}
        given = {name: self._given(node, name, shapes.get(name)) for name in node.input if name}
        if any(value is None for value in given.values()):
            return {}
        try:
            found = self._evaluated(node, {name: value for name, value in given.items() if value is not None})
        except Exception:  # noqa: BLE001 - whatever the reference cannot do is left to TVM, which says so if it cannot
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
