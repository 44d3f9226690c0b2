"""ONNX's Resize by ONNX's formulas: axis by axis, each element is a weighted sum of its neighbours in the input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from tvm import relax

from tvm_backend.constants import Array

GATHERED = 4
"""The most weights of an element along one axis that are gathered one by one; more become a product of matrices."""


@dataclass(frozen=True, slots=True)
class ResizeOptions:
    """The attributes of Resize, by their names, with ONNX's defaults."""

    antialias: int = 0
    axes: Sequence[int] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ResizeOptions:
        """Return the options of a node's attributes. Attributes with other names are ignored."""
        return cls(**{each.name: attributes[each.name] for each in fields(cls) if each.name in attributes})


def resized(
    bb: relax.BlockBuilder,
    data: Any,
    options: ResizeOptions,
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
) -> Any:
    """Return the resized tensor, in the dtype of `data`.

    Raises:
        ValueError: neither scales nor sizes are given, or an option has a value that ONNX does not define.
    """
    shape, dtype = [int(size) for size in data.ty.shape], str(data.ty.dtype)
    axes = [axis % len(shape) for axis in (range(len(shape)) if options.axes is None else options.axes)]
    targets = extents([shape[axis] for axis in axes], options, scales, sizes)
    made, inside = data, np.ones([1] * len(shape))
    for place, (axis, (scale, size)) in enumerate(zip(axes, targets, strict=True)):
        window = (0.0, 1.0) if roi is None else (float(roi[place]), float(roi[place + len(axes)]))
        table = weights(shape[axis], size, scale, window, options)
        inside = inside * table.any(1).reshape([-1 if each == axis else 1 for each in range(len(shape))])
        if not np.array_equal(table, np.eye(shape[axis])):
            made = _along(bb, made, axis, table)
    if not inside.all():
        made = relax.op.astype(made, _wide(dtype))
        made = relax.op.where(
            relax.const(inside != 0, "bool"), made, relax.const(options.extrapolation_value, _wide(dtype))
        )
    return _narrowed(bb.emit(made), dtype)


def extents(
    shape: Sequence[int], options: ResizeOptions, scales: Array | None, sizes: Array | None
) -> list[tuple[float, int]]:
    """Return the scale and the size of the result for each axis."""
    if scales is not None:
        return [(float(s), math.floor(np.float32(n) * np.float32(s))) for n, s in zip(shape, scales, strict=True)]
    if sizes is None:
        raise ValueError("neither its scales nor its sizes are given")
    found = [(int(size) / n, int(size)) for n, size in zip(shape, sizes, strict=True)]
    match options.keep_aspect_ratio_policy:
        case "stretch":
            return found
        case "not_larger":
            scale, _ = min(found)
        case "not_smaller":
            scale, _ = max(found)
        case other:
            raise ValueError(f"{other!r} is no keep_aspect_ratio_policy")
    return [(scale, math.floor(scale * n + 0.5)) for n in shape]


def weights(n: int, size: int, scale: float, window: tuple[float, float], options: ResizeOptions) -> Array:
    """Return the weights of `n` elements in each of `size` results: shape (size, n); zeros for extrapolated results."""
    at = _coordinates(n, size, scale, window, options.coordinate_transformation_mode)
    shrunk = min(scale, 1.0) if options.antialias else 1.0
    margin = math.ceil(2 / shrunk) + 2
    places = np.arange(-margin, n + margin)
    distances = np.abs(places - at[:, None]) * shrunk
    match options.mode:
        case "nearest":
            found = (places == _rounded(at, options.nearest_mode)[:, None]).astype(np.float64)
        case "linear":
            found = np.maximum(1 - distances, 0)
        case "cubic":
            found = _cubic(distances, options.cubic_coeff_a)
        case other:
            raise ValueError(f"{other!r} is no mode")
    if options.exclude_outside:
        found[:, (places < 0) | (places >= n)] = 0
    total = found.sum(1, keepdims=True)
    found /= np.where(total == 0, 1, total)
    table = np.zeros((size, n))
    np.add.at(table.T, places.clip(0, n - 1), found.T)
    if options.coordinate_transformation_mode == "tf_crop_and_resize":
        table[(at < 0) | (at > n - 1)] = 0
    return table


def _coordinates(n: int, size: int, scale: float, window: tuple[float, float], mode: str) -> Array:
    """Return the coordinates of the result's elements among the input's elements."""
    x, length = np.arange(size, dtype=np.float64), scale * n
    match mode:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return n / 2 * (1 - size / length) + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if length != 1 else x * 0 - 0.5
        case "asymmetric":
            return x / scale
        case "align_corners":
            return x * (n - 1) / (length - 1) if length != 1 else x * 0
        case "tf_crop_and_resize":
            start, end = window
            if length == 1:
                return x * 0 + (start + end) * (n - 1) / 2
            return start * (n - 1) + x * (end - start) * (n - 1) / (length - 1)
        case other:
            raise ValueError(f"{other!r} is no coordinate_transformation_mode")


def _rounded(at: Array, mode: str) -> Array:
    match mode:
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
        case "round_prefer_ceil":
            return np.floor(at + 0.5)
        case "floor":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
        case other:
            raise ValueError(f"{other!r} is no nearest_mode")


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _along(bb: relax.BlockBuilder, data: Any, axis: int, table: Array) -> Any:
    count = max(1, int((table != 0).sum(1).max(initial=0)))
    chosen = np.argsort(table == 0, axis=1, kind="stable")[:, :count]
    factors = np.take_along_axis(table, chosen, 1)
    if count == 1 and np.isin(factors, (0, 1)).all():
        return bb.emit(relax.op.take(data, relax.const(chosen[:, 0], "int64"), axis=axis))
    dtype, rank = _wide(str(data.ty.dtype)), data.ty.ndim
    data = bb.emit(relax.op.astype(data, dtype))
    if count > GATHERED:
        order = [axis if each == rank - 1 else rank - 1 if each == axis else each for each in range(rank)]
        product = relax.op.matmul(relax.op.permute_dims(data, order), relax.const(table.T.astype(dtype), dtype))
        return bb.emit(relax.op.permute_dims(product, order))
    total = None
    for place in range(count):
        factor = factors[:, place].astype(dtype).reshape(-1, *[1] * (rank - 1 - axis))
        part = relax.op.multiply(
            relax.op.take(data, relax.const(chosen[:, place], "int64"), axis=axis), relax.const(factor, dtype)
        )
        total = bb.emit(part if total is None else relax.op.add(total, part))
    return total


def _wide(dtype: str) -> str:
    """Return the dtype in which sums are computed."""
    return "float64" if dtype in ("float64", "int32", "int64", "uint32", "uint64") else "float32"


def _narrowed(made: Any, dtype: str) -> Any:
    if str(made.ty.dtype) == dtype:
        return made
    if "int" in dtype:
        limits = np.iinfo(dtype)
        made = relax.op.clip(relax.op.round(made), limits.min, limits.max)
    return relax.op.astype(made, dtype)
