"""The types of a node's results: those that ONNX infers compared with those that TVM made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

DTYPES = {
    getattr(onnx.TensorProto, kind): str(onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, kind)))
    for kind in (
        "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64",
        "UINT8", "UINT16", "UINT32", "UINT64", "BOOL",
    )
}  # fmt: skip
KINDS = {name: kind for kind, name in DTYPES.items()}


def difference(
    node: onnx.NodeProto,
    made: Mapping[str, Any],
    values: Mapping[str, np.ndarray[Any, Any]],
    opsets: Sequence[onnx.OperatorSetIdProto],
    read: Set[str],
) -> str | None:
    """Return a message if a result's type differs from the type that ONNX infers; None if none differs.

    Args:
        node: the node.
        made: the node's inputs and results in Relax, by name.
        values: the known values of its inputs.
        opsets: of the model.
        read: the names of the results that count; the type of a result that nothing reads is not checked.
    """
    expected = _inferred(node, made, values, opsets)
    for name, kind in expected.items():
        if name not in read:
            continue
        ty = made[name].ty if isinstance(made.get(name), relax.Expr) else None
        tensor = kind.tensor_type
        if not isinstance(ty, relax.TensorType) or tensor.elem_type not in DTYPES:
            continue
        sizes = [each.dim_value if each.HasField("dim_value") else None for each in tensor.shape.dim]
        same = str(ty.dtype) == DTYPES[tensor.elem_type]
        if tensor.HasField("shape"):
            same = same and ty.ndim == len(sizes)
        if same and tensor.HasField("shape") and isinstance(ty.shape, relax.ShapeExpr):
            both = zip(ty.shape.values, sizes, strict=True)
            same = all(int(ours.value) == size for ours, size in both if hasattr(ours, "value") and size is not None)
        if not same:
            shape = sizes if tensor.HasField("shape") else ""
            return f"TVM makes {ty} of it, ONNX {DTYPES[tensor.elem_type]}{shape}"
    return None


def _inferred(
    node: onnx.NodeProto,
    made: Mapping[str, Any],
    values: Mapping[str, np.ndarray[Any, Any]],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> Mapping[str, onnx.TypeProto]:
    """Return the types of a node's results by name; nothing if ONNX does not define the node, or it is inconsistent."""
    version = next((each.version for each in opsets if (each.domain or "ai.onnx") == (node.domain or "ai.onnx")), 0)
    kinds = {name: _type(made.get(name)) for name in node.input if name}
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not version or len(known) < len(kinds) or not onnx.defs.has(node.op_type, domain):
        return {}
    data = {name: numpy_helper.from_array(values[name], name) for name in kinds if name in values}
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        return onnx.shape_inference.infer_node_outputs(schema, node, known, data, opset_imports=list(opsets))
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
        return {}


def _type(given: Any) -> onnx.TypeProto | None:
    if not isinstance(given, relax.Expr):
        return None
    if isinstance(given.ty, relax.ShapeType):
        return onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [given.ty.ndim])
    if not isinstance(given.ty, relax.TensorType) or str(given.ty.dtype) not in KINDS:
        return None
    if not isinstance(given.ty.shape, relax.ShapeExpr):
        return None
    sizes = [int(each.value) if hasattr(each, "value") else None for each in given.ty.shape.values]
    return onnx.helper.make_tensor_type_proto(KINDS[str(given.ty.dtype)], sizes)


def names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of the tensors that are read: by the graph's nodes, by their branches' nodes, or as outputs."""
    yield from (output.name for output in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from names_read(inner)
