"""ONNX models: read, checked against TVM's conversions node by node, converted for each batch size."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import inliner, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

from tvm_backend.errors import CompileError, InvalidModel
from tvm_backend.frontends.content import Digest, feed, feed_all
from tvm_backend.frontends.imported import Imported, Prepared
from tvm_backend.frontends.onnx_constants import SMALL, Values
from tvm_backend.frontends.onnx_nodes import STANDARD, OnnxImporter, is_known, where
from tvm_backend.frontends.onnx_types import DTYPES
from tvm_backend.frontends.parts import Part, merged, output_names
from tvm_backend.frontends.shapes import Input, batch_dimension, bindings, by_name


def prepared(model: onnx.ModelProto, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Prepared:
    """Prepare a ModelProto; its bytes are its content."""

    def content(digest: Digest) -> None:
        # part by part: protobuf cannot write a message of more than 2 GB, and a copy would take as long as the hash
        for whole, left_out in ((model, "graph"), (model.graph, "initializer")):
            for field, value in whole.ListFields():
                if field.name != left_out:
                    feed(digest, field.name)
                    for part in value if isinstance(value, MutableSequence) else [value]:
                        feed(digest, _bytes(part))
        feed_all(digest, map(_bytes, model.graph.initializer))

    return Prepared(content, lambda: imported(model, examples, batch_sizes, name))


def _bytes(part: Any) -> bytes:
    """Return the bytes of a message or of a scalar field."""
    if isinstance(part, str | bytes | int | float):
        return repr(part).encode()
    made: bytes = part.SerializeToString(deterministic=True)
    return made


def imported(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Imported:
    """Return a ModelProto in Relax; see `frontends.prepared` for the arguments.

    Raises:
        InvalidModel: a model that ONNX does not accept, or inputs that do not fit the other arguments.
        UnsupportedOperators: nodes that TVM cannot convert.
    """
    model = decomposed(checked(model, name), name)
    graph = model.graph
    inputs = declared_inputs(graph, name)
    found = bindings(name, inputs, by_name(name, [each.name for each in inputs], examples), batch_sizes)
    arrays = {tensor.name: array(tensor, name) for tensor in graph.initializer}
    tensors = {tensor: tvm.runtime.tensor(value) for tensor, value in arrays.items()}
    small = {tensor: value for tensor, value in arrays.items() if value.size <= SMALL}
    parts = []
    for binding in found:
        known = Values(small, model.opset_import)
        importer = OnnxImporter({each.name: list(binding.shape(each)) for each in inputs}, tensors, known, graph)
        module = importer.converted(name, opset(model))
        names = output_names(module["main"].ret_ty, [output.name for output in graph.output])
        parts.append(
            Part(binding.batch_size, module, "main", tuple(each.name for each in inputs), names, importer.origins)
        )
    module, entries = merged(name, parts)
    return Imported(name, module, entries, arrays, parts[0].origins)


def read(path: Path, name: str) -> onnx.ModelProto:
    """Return the model of an ONNX file, with its external data.

    Raises:
        InvalidModel: no such file, no ONNX file, or external data is missing.
    """
    try:
        return onnx.load(path)
    except Exception as error:  # protobuf's errors, the checker's, OSError
        what = "cannot be read" if isinstance(error, OSError) else "is not an ONNX model, or its external data is wrong"
        raise InvalidModel(f"{path} {what}: {error}", model=name, path=str(path)) from error


def external_files(path: Path, name: str) -> list[Path]:
    """Return the files that hold a model's external tensors.

    Raises:
        InvalidModel: the path is no ONNX model.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors
        raise InvalidModel(f"{path} is not an ONNX model: {error}", model=name, path=str(path)) from error
    outside = [tensor for tensor in _get_all_tensors(model) if uses_external_data(tensor)]
    return sorted({path.parent / ExternalDataInfo(tensor).location for tensor in outside})


def checked(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model if its graph can be read.

    Raises:
        InvalidModel: the graph is missing, incomplete, or inconsistent.
    """
    if not model.HasField("graph") or not model.graph.output:
        raise InvalidModel(f"{name} is not an ONNX model: it has no graph with an output", model=name)
    if model.ir_version < 3:
        raise InvalidModel(f"{name} is of ONNX IR version {model.ir_version}; 3 is the oldest read", model=name)
    outside = [tensor.name for tensor in model.graph.initializer if uses_external_data(tensor)]
    if outside:
        message = (
            f"{name}: {outside[0]!r} has its data in another file: give the model's path, or load it with onnx.load"
        )
        raise InvalidModel(message, model=name, names=tuple(outside))
    sparse = [tensor.values.name for tensor in model.graph.sparse_initializer]
    if sparse:
        raise InvalidModel(f"{name}: initializers {', '.join(sparse)} are sparse", model=name, names=tuple(sparse))
    made = {tensor.name for tensor in model.graph.initializer} | {each.name for each in model.graph.input} | {""}
    for index, node in enumerate(model.graph.node):
        unknown = [given for given in node.input if given not in made]
        if unknown:
            place = where(index, node, len(model.graph.node))
            message = f"{name}: {place} reads {unknown[0]!r}, which nothing before it makes"
            raise InvalidModel(message, model=name, names=tuple(unknown))
        made.update(node.output)
    unknown = [output.name for output in model.graph.output if output.name not in made]
    if unknown:
        message = f"{name}: nothing makes the output {unknown[0]!r}"
        raise InvalidModel(message, model=name, names=tuple(unknown))
    return model


def decomposed(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with its own functions inlined, and unknown operators replaced by ONNX's definitions of them.

    Unknown are the operators that TVM does not convert. Those without a definition in ONNX stay.

    Raises:
        CompileError: ONNX cannot inline the model's functions.
    """
    if model.functions:
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:  # the inliner is C++ and raises its own
            message = f"{name}: ONNX cannot inline its functions: {error}"
            raise CompileError(message, model=name, stage="import") from error
    unknown = sorted({(node.domain, node.op_type) for node in model.graph.node if not is_known(node)})
    if not unknown:
        return model
    try:
        return inliner.inline_selected_functions(_typed(model), unknown, inline_schema_functions=True)
    except Exception:  # for example, types are missing; the import lists each unknown operator  # noqa: BLE001
        return model


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the types of its tensors: some definitions depend on them."""
    typed = onnx.shape_inference.infer_shapes(model)
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    )
    return typed


def declared_inputs(graph: onnx.GraphProto, name: str) -> tuple[Input, ...]:
    """Return the graph's inputs without its initializers.

    A first dimension without a name is the batch; other dimensions without a name are called `input.axis`.

    Raises:
        InvalidModel: an input is no tensor of known rank and dtype.
    """
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = []
    for value in graph.input:
        if value.name in initialized:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape") or tensor.elem_type not in DTYPES:
            message = f"{name}: input {value.name!r} is no tensor of numbers whose rank is known"
            raise InvalidModel(message, model=name, input=value.name)
        shape: list[int | str] = []
        for axis, size in enumerate(tensor.shape.dim):
            known = size.HasField("dim_value") and size.dim_value >= 0
            shape.append(int(size.dim_value) if known else size.dim_param or f"{value.name}.{axis}")
        inputs.append(Input(value.name, tuple(shape), DTYPES[tensor.elem_type]))
    batch = batch_dimension(inputs)
    return tuple(
        Input(each.name, (batch, *each.shape[1:]), each.dtype)
        if batch is not None and each.shape[:1] == (f"{each.name}.0",)
        else each
        for each in inputs
    )


def array(tensor: onnx.TensorProto, name: str) -> np.ndarray[Any, Any]:
    """Return an initializer's values.

    Raises:
        InvalidModel: they cannot be read.
    """
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # for example, the data's size does not fit the shape
        message = f"{name}: initializer {tensor.name!r} cannot be read: {error}"
        raise InvalidModel(message, model=name, names=(tensor.name,)) from error


def opset(model: onnx.ModelProto) -> int:
    """Return the model's version of ONNX's standard operators, 1 if it names none."""
    return next((each.version for each in model.opset_import if each.domain in ("", STANDARD)), 1)
