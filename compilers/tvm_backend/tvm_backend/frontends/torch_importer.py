"""TVM's importer of exported programs, with PyTorch's meaning where TVM's conversions differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch.export import default_decompositions
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)
"""Types whose products are summed up in float32, as in PyTorch."""

CONVOLUTIONS = {
    (3, False): (relax.op.nn.conv1d, "NCW", "OIW"),
    (4, False): (relax.op.nn.conv2d, "NCHW", "OIHW"),
    (5, False): (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
    (3, True): (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    (4, True): (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
}
"""(rank, transposed or not) -> operator, layout of data, layout of weights."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's own decompositions into core operators, and more for operators that TVM lacks or gets wrong.

    TVM's ELU has no scales, its nearest neighbours are rounded, and it leaves averages over windows of unequal sizes to
    the host.
    """
    table: dict[Any, Callable[..., Any]] = default_decompositions()
    more = (aten.elu, aten.upsample_nearest2d.vec, aten._adaptive_avg_pool2d, aten.grid_sampler_2d)
    return {**table, **get_decompositions(more)}


class TorchImporter(ExportedProgramImporter):  # type: ignore[misc]
    """TVM's importer with PyTorch's promotion of operands. It ignores no option of an operator silently."""

    def create_convert_map(self) -> dict[Any, Callable[[fx.Node], Any]]:
        """Return TVM's conversions by operator, with those of this class in the place of wrong ones."""
        known: dict[Any, Callable[[fx.Node], Any]] = super().create_convert_map()
        known |= dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), self._matmul)
        known |= dict.fromkeys(("amax.default", "amin.default"), self._extreme)
        known |= {"prod.dim_int": self._prod, "var_mean.correction": self._var_mean}
        for each in ("cumsum.default", "cumprod.default", "prod.default", "prod.dim_int"):
            known[each] = self._widened(known[each])
        return known

    def _widened(self, usual: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        """Return a conversion that casts the argument to the result's type first: integers are summed up as int64."""

        def convert(node: fx.Node) -> Any:
            given = node.args[0]
            narrow = self.env[given]
            self.env[given] = self._cast(narrow, node.meta["val"].dtype)
            try:
                return usual(node)
            finally:
                self.env[given] = narrow

        return convert

    def _var_mean(self, node: fx.Node) -> Any:
        given, *axes = self.retrieve_args(node)
        mean = relax.op.mean(given, *axes[:1], keepdims=node.kwargs.get("keepdim", False))
        return self.block_builder.emit(relax.Tuple([self._var_correction(node), self.block_builder.emit(mean)]))

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Return a tensor or a number as a tensor of this dtype."""
        name = self._convert_data_type(dtype)
        if not isinstance(value, relax.Expr):
            return relax.const(value, name)
        return value if str(value.ty.dtype) == name else self.block_builder.emit(relax.op.astype(value, name))

    def _binary_op(self, relax_op: Callable[..., Any], intrinsic_op: Callable[..., Any]) -> Callable[[fx.Node], Any]:
        """Return a conversion for two tensors, or a tensor and a number, in the type in which PyTorch computes."""
        usual = super()._binary_op(relax_op, intrinsic_op)

        def convert(node: fx.Node) -> Any:
            if not isinstance(node.meta.get("val"), torch.Tensor):
                return usual(node)
            given = [each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args[:2]]
            dtype = node.meta["val"].dtype
            if dtype is torch.bool:
                dtype = torch.result_type(*given)
            left, right = (self._cast(each, dtype) for each in self.retrieve_args(node)[:2])
            if left is right and dtype.is_floating_point and relax_op in (relax.op.equal, relax.op.not_equal):
                nan = self.block_builder.emit(relax.op.isnan(left))  # TVM folds x == x to true
                return nan if relax_op is relax.op.not_equal else self.block_builder.emit(relax.op.logical_not(nan))
            return self.block_builder.emit(relax_op(left, self._scaled(right, node.kwargs.get("alpha", 1), dtype)))

        return convert

    def _scaled(self, value: Any, factor: Any, dtype: torch.dtype) -> Any:
        return value if factor == 1 else self.block_builder.emit(relax.op.multiply(value, self._cast(factor, dtype)))

    def _div(self, node: fx.Node) -> Any:
        dtype = node.meta["val"].dtype
        left, right = (self._cast(each, dtype) for each in self.retrieve_args(node)[:2])
        if node.kwargs.get("rounding_mode") == "floor":
            return self.block_builder.emit(relax.op.floor_divide(left, right))
        quotient = self.block_builder.emit(relax.op.divide(left, right))
        truncated = node.kwargs.get("rounding_mode") == "trunc" and dtype.is_floating_point
        return self.block_builder.emit(relax.op.trunc(quotient)) if truncated else quotient

    def _fmod(self, node: fx.Node) -> Any:
        dtype = node.meta["val"].dtype
        return self.block_builder.emit(relax.op.mod(*(self._cast(each, dtype) for each in self.retrieve_args(node))))

    def _product(self, left: Any, right: Any, dtype: torch.dtype) -> Any:
        made = relax.op.matmul(left, right, out_dtype="float32" if dtype in HALVES else None)
        return self._cast(self.block_builder.emit(made), dtype)

    def _matmul(self, node: fx.Node) -> Any:
        left, right = self.retrieve_args(node)
        return self._product(left, right, node.meta["val"].dtype)

    def _addmm(self, node: fx.Node) -> Any:
        bias, left, right = self.retrieve_args(node)[:3]
        dtype = node.meta["val"].dtype
        product = self._scaled(self._product(left, right, dtype), node.kwargs.get("alpha", 1), dtype)
        if node.kwargs.get("beta", 1) == 0:
            return product
        return self.block_builder.emit(relax.op.add(self._scaled(bias, node.kwargs.get("beta", 1), dtype), product))

    def _convolution(self, node: fx.Node) -> Any:
        data, weight, bias, strides, padding, dilation, transposed, output_padding, groups = self.retrieve_args(node)
        rank, dtype = len(node.meta["val"].shape), node.meta["val"].dtype
        if (rank, transposed) not in CONVOLUTIONS:
            raise ValueError(f"a transposed convolution of {rank - 2} dimensions")
        operator, layout, weights = CONVOLUTIONS[rank, transposed]
        made = operator(
            data, weight, strides=strides, padding=padding, dilation=dilation, groups=groups, data_layout=layout,
            kernel_layout=weights, out_dtype="float32" if dtype in HALVES else self._convert_data_type(dtype),
            **({"output_padding": output_padding} if transposed else {}),
        )  # fmt: skip
        result = self._cast(self.block_builder.emit(made), dtype)
        if bias is None:
            return result
        bias = relax.op.reshape(bias, (1, -1, *[1] * (rank - 2)))
        return self.block_builder.emit(relax.op.add(result, bias))

    def _avg_pool2d(self, node: fx.Node) -> Any:
        if len(node.args) > 6 and node.args[6] is not None:
            raise ValueError("TVM's has no divisor_override")
        return super()._avg_pool2d(node)

    def _extreme(self, node: fx.Node) -> Any:
        operator = relax.op.max if str(node.target).startswith("aten.amax") else relax.op.min
        given = self.env[node.args[0]]
        axes = list(node.args[1]) if len(node.args) > 1 else []
        keep = bool(node.args[2]) if len(node.args) > 2 else False
        return self.block_builder.emit(operator(given, axes or None, keepdims=keep))

    def _where(self, node: fx.Node) -> Any:
        condition, yes, no = self.retrieve_args(node)
        dtype = node.meta["val"].dtype
        return self.block_builder.emit(relax.op.where(condition, self._cast(yes, dtype), self._cast(no, dtype)))

    def _index_tensor(self, node: fx.Node) -> Any:
        """Convert indexing by tensors for some axes, as PyTorch defines it.

        The indexed dimensions take the place of adjacent axes; if the axes are not adjacent, they come first. TVM would
        combine each index with each if an axis has none.
        """
        data, indices = self.retrieve_args(node)
        places = [place for place, index in enumerate(indices) if index is not None]
        if any(str(indices[place].ty.dtype) in ("bool", "uint8") for place in places):
            return super()._index_tensor(node)
        rest = [axis for axis in range(node.args[0].meta["val"].ndim) if axis not in places]
        if len(places) == 1:
            return self.block_builder.emit(relax.op.take(data, indices[places[0]], axis=places[0]))
        front = self.block_builder.emit(relax.op.permute_dims(data, [*places, *rest]))
        found = self.block_builder.emit(relax.op.index_tensor(front, [indices[place] for place in places]))
        before = places[0] if places[-1] - places[0] == len(places) - 1 else 0
        indexed = len(node.meta["val"].shape) - len(rest)
        order = [*range(indexed, indexed + before), *range(indexed), *range(indexed + before, indexed + len(rest))]
        return self.block_builder.emit(relax.op.permute_dims(found, order))

    def stand_in(self, node: fx.Node) -> Any:
        """Return zeros like a node's results, so that later nodes can still be converted; None if sizes are open."""
        value = node.meta.get("val")
        values = list(value) if isinstance(value, list | tuple) else [value]
        if not all(
            isinstance(each, torch.Tensor) and all(isinstance(size, int) for size in each.shape) for each in values
        ):
            return None
        zeros = [relax.op.zeros(tuple(each.shape), self._convert_data_type(each.dtype)) for each in values]
        return self.block_builder.emit(relax.Tuple(zeros) if isinstance(value, list | tuple) else zeros[0])


def difference(node: fx.Node, made: Any) -> str | None:
    """Return a message if a result's type is not PyTorch's, else None; sizes open on either side are not compared."""
    expected = node.meta.get("val")
    if not (
        isinstance(expected, torch.Tensor) and isinstance(made, relax.Expr) and isinstance(made.ty, relax.TensorType)
    ):
        return None
    dtype = str(expected.dtype).removeprefix("torch.")
    same = str(made.ty.dtype) == dtype and made.ty.ndim == expected.ndim
    if same and isinstance(made.ty.shape, relax.ShapeExpr):
        sizes = zip(made.ty.shape.values, expected.shape, strict=True)
        same = all(int(ours.value) == size for ours, size in sizes if hasattr(ours, "value") and isinstance(size, int))
    return None if same else f"TVM makes {made.ty} of it, PyTorch {dtype}{list(expected.shape)}"
