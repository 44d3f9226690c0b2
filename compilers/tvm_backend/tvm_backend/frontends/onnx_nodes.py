"""ONNX nodes into Relax: TVM's conversions one by one, with the places of those that fail."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import tvm
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_backend.errors import Place, unsupported
from tvm_backend.frontends.onnx_constants import Values
from tvm_backend.frontends.onnx_operators import OWN
from tvm_backend.frontends.onnx_types import difference, names_read
from tvm_backend.frontends.parts import is_static

STANDARD, MICROSOFT = "ai.onnx", "com.microsoft"
ONLY_MICROSOFT = {
    "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "SkipLayerNormalization",
}  # fmt: skip
"""What TVM converts by the meaning that it has in Microsoft's domain."""
ALSO_MICROSOFT = {"Gelu"}

KNOWN = {*onnx_frontend._get_convert_map(), "Constant"}


class OnnxImporter(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, node by node: it gathers the nodes that fail, with their places, and says where Relax's variables
    come from. Tensors are shared by the importers of all batch sizes."""

    def __init__(
        self,
        shapes: Mapping[str, list[int]],
        tensors: Mapping[str, tvm.runtime.Tensor],
        known: Values,
        graph: onnx.GraphProto,
    ) -> None:
        super().__init__(shapes, {})
        self.tensors, self.known, self.graph = tensors, known, graph
        self.read = frozenset(names_read(graph))
        self.origins: dict[str, tuple[str, str]] = {}
        self.places: list[Place] = []
        self.missing: set[str] = set()
        self.causes: list[Exception] = []

    def converted(self, name: str, opset: int) -> tvm.IRModule:
        """
        Raises:
            UnsupportedOperators: of all nodes that failed.
        """
        try:
            # without its nodes, that is: an If among them would forbid TVM to fuse any
            graph = self.graph
            return self.from_onnx(_Frame(graph.initializer, graph.input, graph.output), opset)
        except _Incomplete:
            raise unsupported(name, self.places) from next(iter(self.causes), None)

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        known = self.tensors.get(tensor.name)
        return tvm.runtime.tensor(numpy_helper.to_array(tensor)) if known is None else known

    def _sanitize_name(self, name: str) -> str:
        """A name that CUDA C++ can have: TVM takes a kernel's parameter names from it."""
        return str(self._name_supply.fresh_name("input_" + re.sub(r"\W", "_", name, flags=re.ASCII)))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: the nodes are looked at one by one."""

    def _construct_nodes(self, _frame: _Frame) -> None:
        self._convert(self.graph.node)
        if self.places:
            raise _Incomplete

    def _convert(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for index, node in enumerate(nodes):
            told = Place(operator(node), where(index, node, len(nodes)), "TVM has no conversion of it")
            if self.missing & set(node.input):  # told already, by the node that should have made it
                if not is_known(node) and node.op_type != "If":
                    self.places.append(told)
                self.missing.update(node.output)
            elif self._fold(node):
                continue
            elif node.op_type == "If":
                self._branch(node, told)
            elif not is_known(node):
                self._refuse(node, told)
            else:
                self._convert_node(node, told)

    def _fold(self, node: onnx.NodeProto) -> bool:
        """What is the same each time is computed here; sizes and indices above all, since TVM must know them."""
        shapes = {each: _static_shape(self._nodes.get(each)) for each in node.input if each}
        values = self.known.computed(node, shapes)
        for output, value in values.items():
            self._nodes[output] = relax.const(tvm.runtime.tensor(value))
        return bool(values)

    def _branch(self, node: onnx.NodeProto, told: Place) -> None:
        """An If whose condition is known is the branch that it takes."""
        condition = self.known.values.get(node.input[0])
        if condition is None:
            self._refuse(node, replace(told, reason="a branch; a kTask runs the same kernels each time"))
            return
        taken = "then_branch" if condition.item() else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == taken)
        for tensor in branch.initializer:
            self._nodes[tensor.name] = relax.const(self._parse_array(tensor))
        self._convert(branch.node)
        for output, made in zip(node.output, branch.output, strict=True):
            if made.name in self.missing:
                self.missing.add(output)
            else:
                self._nodes[output] = self._nodes[made.name]
                self.known.alias(output, made.name)

    def _convert_node(self, node: onnx.NodeProto, told: Place) -> None:
        try:
            super()._construct_nodes(onnx.GraphProto(node=[node]))
        except _Failed as failed:
            self._fail(node, told, failed.error)
        except Exception as error:  # noqa: BLE001 - conversions raise whatever they meet
            self._fail(node, told, error)
        else:
            self._told(node, told)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        try:
            if op_name in OWN:
                made = self.bb.normalize(OWN[op_name](self.bb, inputs, attrs, opset))
            else:
                made = super()._convert_operator(op_name, inputs, attrs, opset)
            # unbound calls would be computed once for each node that reads them
            return self.bb.emit(made) if isinstance(made, tvm.ir.Call) else made
        except Exception as error:
            raise _Failed(error) from error

    def _fail(self, node: onnx.NodeProto, told: Place, error: Exception) -> None:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        self._refuse(node, replace(told, reason=reason))
        self.causes.append(error)

    def _refuse(self, node: onnx.NodeProto, place: Place) -> None:
        self.places.append(place)
        self.missing.update(node.output)

    def _told(self, node: onnx.NodeProto, told: Place) -> None:
        for output in node.output:
            made = self._nodes.get(output)
            if isinstance(made, relax.Var):
                self.origins.setdefault(made.name, (told.operator, told.where))
            if isinstance(made, relax.Expr) and not is_static(made.ty):
                self._refuse(node, replace(told, reason="the shape of its result depends on values"))
                return
        reason = difference(node, self._nodes, self.known.values, self.known.opsets, self.read)
        if reason:
            self._refuse(node, replace(told, reason=reason))


@dataclass(frozen=True, slots=True)
class _Frame:
    """What TVM's importer looks at of a graph, but for its nodes."""

    initializer: Sequence[onnx.TensorProto]
    input: Sequence[onnx.ValueInfoProto]
    output: Sequence[onnx.ValueInfoProto]
    node: tuple[()] = ()


class _Failed(BaseException):
    """A conversion's error on its way past the importer, which would print every Exception with all its inputs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Incomplete(Exception):
    """Some nodes were not converted."""


def _static_shape(made: Any) -> tuple[int, ...] | None:
    if isinstance(made, relax.Expr) and isinstance(made.ty, relax.TensorType) and is_static(made.ty):
        return tuple(int(size) for size in made.ty.shape)
    return None


def is_known(node: onnx.NodeProto) -> bool:
    """Whether TVM has a conversion of the node. TVM looks at names alone; here domains count."""
    if node.op_type not in KNOWN:
        return False
    if (node.domain or STANDARD) == STANDARD:
        return node.op_type not in ONLY_MICROSOFT
    return node.domain == MICROSOFT and node.op_type in ONLY_MICROSOFT | ALSO_MICROSOFT


def operator(node: onnx.NodeProto) -> str:
    return f"{node.domain or STANDARD}.{node.op_type}"


def where(index: int, node: onnx.NodeProto, count: int) -> str:
    name = repr(node.name) if node.name else f"making {', '.join(node.output)!r}"
    return f"node {name}, {index + 1} of {count}"
