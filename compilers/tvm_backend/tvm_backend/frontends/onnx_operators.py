"""Conversions of ONNX operators that TVM converts differently: it leaves out options, or refuses or changes types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_backend.constants import Array
from tvm_backend.frontends import onnx_resize

FIRST_RESIZE = 11
"""The first opset whose Resize defines its coordinates."""

CLOSE = 1e-12
"""The largest relative distance of a computed power from the whole number that it stands for."""


def constant(value: Any) -> Array | None:
    """Return a constant's elements; None if it has none, or if the input is missing.

    Raises:
        ValueError: the value is no constant.
    """
    if value is None:
        return None
    if not isinstance(value, tvm.ir.GenericConst):
        raise ValueError("what it does depends on values")
    found: Array = value.value.numpy()
    return found if found.size else None


def is_inf(_bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], _opset: int) -> Any:
    """Convert IsInf, with `detect_negative` and `detect_positive`."""
    given = inputs[0]
    zero = relax.const(0, str(given.ty.dtype))
    found = relax.op.isinf(given)
    if not attrs.get("detect_negative", 1):
        found = relax.op.logical_and(found, relax.op.greater(given, zero))
    if not attrs.get("detect_positive", 1):
        found = relax.op.logical_and(found, relax.op.less(given, zero))
    return found


def power(bb: relax.BlockBuilder, inputs: Sequence[Any], _attrs: Mapping[str, Any], _opset: int) -> Any:
    """Convert Pow, in the base's type.

    CUDA has no power of integers: it is computed in float64, which is exact up to 53 bits.
    """
    base, exponent = inputs[0], inputs[1]
    dtype = str(base.ty.dtype)
    if "float" in dtype:
        return relax.op.power(base, exponent if str(exponent.ty.dtype) == dtype else relax.op.astype(exponent, dtype))
    found = bb.emit(relax.op.power(relax.op.astype(base, "float64"), relax.op.astype(exponent, "float64")))
    whole = bb.emit(relax.op.round(found))
    error = relax.op.abs(relax.op.subtract(found, whole))
    close = relax.op.less_equal(error, relax.op.multiply(relax.op.abs(whole), relax.const(CLOSE, "float64")))
    return relax.op.astype(relax.op.where(close, whole, found), dtype)  # the cast drops the fraction


def one_hot(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], _opset: int) -> Any:
    """Convert OneHot; negative indices count from the end.

    Raises:
        ValueError: the depth is no constant, or missing.
    """
    depths = constant(inputs[1])
    if depths is None:
        raise ValueError("its depth is missing")
    depth, values = int(depths.item()), inputs[2]
    indices = bb.emit(relax.op.astype(inputs[0], "int64"))
    axis = attrs.get("axis", -1) % (indices.ty.ndim + 1)
    from_end = relax.op.add(indices, relax.const(depth, "int64"))
    indices = relax.op.where(relax.op.less(indices, relax.const(0, "int64")), from_end, indices)
    classes = np.arange(depth).reshape(-1, *[1] * (inputs[0].ty.ndim - axis))
    hot = relax.op.equal(relax.op.expand_dims(indices, axis), relax.const(classes, "int64"))
    off, on = (relax.op.take(values, relax.const(place, "int64"), axis=0) for place in (0, 1))
    return relax.op.where(hot, on, off)


def resize(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """Convert Resize; see `onnx_resize.resized`.

    Raises:
        ValueError: the opset is too old, or scales or sizes are no constants.
    """
    if opset < FIRST_RESIZE:
        raise ValueError(f"before opset {FIRST_RESIZE} ONNX does not say which elements it takes")
    options = onnx_resize.ResizeOptions.of(
        {name: _text(value) for name, value in attrs.items() if name != "tvm_custom"}
    )
    roi = constant(inputs[1]) if options.coordinate_transformation_mode == "tf_crop_and_resize" else None
    return onnx_resize.resized(bb, inputs[0], options, roi, constant(inputs[2]), constant(inputs[3]))


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


OWN: Mapping[str, Callable[..., Any]] = {"IsInf": is_inf, "OneHot": one_hot, "Pow": power, "Resize": resize}
"""Conversions by operator. Each takes Relax's builder, the inputs, the attributes and the opset."""
