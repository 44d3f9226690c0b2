"""ONNX nodes converted to Relax one by one with TVM's conversions, and the places of the nodes that fail."""

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
"""Operators that TVM converts with their meaning in Microsoft's domain."""
ALSO_MICROSOFT = {"Gelu"}

KNOWN = {*onnx_frontend._get_convert_map(), "Constant"}


class OnnxImporter(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, node by node.

    It collects the nodes that fail in `places`, and the origins of Relax's variables in `origins`. The importers of all
    batch sizes share `tensors`.
    """

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
        """Return the graph in Relax.

        Raises:
            UnsupportedOperators: nodes failed; the error lists all of them.
        """
        try:
            # TVM sees the graph without its nodes: it fuses nothing in a graph with an If
            graph = self.graph
            return self.from_onnx(_Frame(graph.initializer, graph.input, graph.output), opset)
        except _Incomplete:
            raise unsupported(name, self.places) from next(iter(self.causes), None)

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        known = self.tensors.get(tensor.name)
        return tvm.runtime.tensor(numpy_helper.to_array(tensor)) if known is None else known

    def _sanitize_name(self, name: str) -> str:
        """Return a name that is valid in CUDA C++: TVM takes a kernel's parameter names from it."""
        return str(self._name_supply.fresh_name("input_" + re.sub(r"\W", "_", name, flags=re.ASCII)))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing: `_convert` checks the nodes one by one."""

    def _construct_nodes(self, _frame: _Frame) -> None:
        self._convert(self.graph.node)
        if self.places:
            raise _Incomplete

    def _convert(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for index, node in enumerate(nodes):
            place = Place(operator(node), where(index, node, len(nodes)), "TVM has no conversion of it")
            if self.missing & set(node.input):  # the place of the node that should have made the input is noted
                if not is_known(node) and node.op_type != "If":
                    self.places.append(place)
                self.missing.update(node.output)
            elif self._fold(node):
                continue
            elif node.op_type == "If":
                self._branch(node, place)
            elif not is_known(node):
                self._refuse(node, place)
            else:
                self._convert_node(node, place)

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Compute a node with constant results, and return True if it is one: TVM must know sizes and indices."""
        shapes = {each: _static_shape(self._nodes.get(each)) for each in node.input if each}
        values = self.known.computed(node, shapes)
        for output, value in values.items():
            self._nodes[output] = relax.const(tvm.runtime.tensor(value))
        return bool(values)

    def _branch(self, node: onnx.NodeProto, place: Place) -> None:
        """Convert the branch that an If with a known condition takes; refuse an If with an unknown condition."""
        condition = self.known.values.get(node.input[0])
        if condition is None:
            self._refuse(node, replace(place, reason="a branch; a kTask runs the same kernels each time"))
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

    def _convert_node(self, node: onnx.NodeProto, place: Place) -> None:
        try:
            super()._construct_nodes(onnx.GraphProto(node=[node]))
        except _Failed as failed:
            self._fail(node, place, failed.error)
        except Exception as error:  # noqa: BLE001 - conversions raise any error
            self._fail(node, place, error)
        else:
            self._check(node, place)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        try:
            if op_name in OWN:
                made = self.bb.normalize(OWN[op_name](self.bb, inputs, attrs, opset))
            else:
                made = super()._convert_operator(op_name, inputs, attrs, opset)
            # bound to a variable: an unbound call would be computed once for each node that reads it
            return self.bb.emit(made) if isinstance(made, tvm.ir.Call) else made
        except Exception as error:
            raise _Failed(error) from error

    def _fail(self, node: onnx.NodeProto, place: Place, error: Exception) -> None:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        self._refuse(node, replace(place, reason=reason))
        self.causes.append(error)

    def _refuse(self, node: onnx.NodeProto, place: Place) -> None:
        self.places.append(place)
        self.missing.update(node.output)

    def _check(self, node: onnx.NodeProto, place: Place) -> None:
        """Note the origins of a node's results, and refuse a node whose results have the wrong type or open shapes."""
        for output in node.output:
            made = self._nodes.get(output)
            if isinstance(made, relax.Var):
                self.origins.setdefault(made.name, (place.operator, place.where))
            if isinstance(made, relax.Expr) and not is_static(made.ty):
                self._refuse(node, replace(place, reason="the shape of its result depends on values"))
                return
        reason = difference(node, self._nodes, self.known.values, self.known.opsets, self.read)
        if reason:
            self._refuse(node, replace(place, reason=reason))


@dataclass(frozen=True, slots=True)
class _Frame:
    """The parts of a graph that TVM's importer reads, without its nodes."""

    initializer: Sequence[onnx.TensorProto]
    input: Sequence[onnx.ValueInfoProto]
    output: Sequence[onnx.ValueInfoProto]
    node: tuple[()] = ()


class _Failed(BaseException):
    """A conversion's error, no Exception: TVM's importer would print an Exception with all inputs."""

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
    """Return True if TVM has a conversion of the node. TVM compares names alone; here domains count too."""
    if node.op_type not in KNOWN:
        return False
    if (node.domain or STANDARD) == STANDARD:
        return node.op_type not in ONLY_MICROSOFT
    return node.domain == MICROSOFT and node.op_type in ONLY_MICROSOFT | ALSO_MICROSOFT


def operator(node: onnx.NodeProto) -> str:
    """Return the name of a node's operator, with its domain."""
    return f"{node.domain or STANDARD}.{node.op_type}"


def where(index: int, node: onnx.NodeProto, count: int) -> str:
    """Return a node's name, or its outputs if it has none, and its number among `count` nodes."""
    name = repr(node.name) if node.name else f"making {', '.join(node.output)!r}"
    return f"node {name}, {index + 1} of {count}"
