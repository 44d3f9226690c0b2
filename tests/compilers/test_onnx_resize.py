"""Resize: the weights along each axis against ONNX's reference, for every kind of coordinates, rounding and sum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.compilers.onnx_cases import Array, model, value
from tvm_backend.errors import UnsupportedOperators
from tvm_backend.frontends import imported
from tvm_backend.frontends.onnx_resize import ResizeOptions, extents, weights

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize",
)  # fmt: skip
SUMS: tuple[dict[str, Any], ...] = (
    *(
        {"mode": "nearest", "nearest_mode": each}
        for each in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        {"mode": mode, **more}
        for mode in ("linear", "cubic")
        for more in ({}, {"antialias": 1}, {"exclude_outside": 1})
    ),
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1, "antialias": 1},
)
FACTORS = ((1.5, 0.6), (2.0, 0.45), (0.2, 3.0), (1.0, 0.34))
ROI = np.array([-0.3, 0.1, 0.8, 1.2], np.float32)


def resize(options: dict[str, Any], constants: dict[str, Array], x: Array) -> Array:
    """Return the reference's weights."""
    names = [name if name in constants else "" for name in ("roi", "scales", "sizes")]
    made = model(
        [helper.make_node("Resize", ["x", *names], ["y"], **options)], [value("x", x.shape)], ["y"], constants, opset=19
    )
    (answer,) = ReferenceEvaluator(made).run(None, {"x": x})
    return np.asarray(answer)


def own(options: dict[str, Any], constants: dict[str, Array], x: Array) -> Array:
    chosen = ResizeOptions.of(options)
    roi = constants.get("roi", np.array([0.0, 0, 1, 1]))
    found = extents(x.shape, chosen, constants.get("scales"), constants.get("sizes"))
    tables = [
        weights(n, size, scale, (roi[axis], roi[axis + 2]), chosen)
        for axis, (n, (scale, size)) in enumerate(zip(x.shape, found, strict=True))
    ]
    answer: Array = tables[0] @ x @ tables[1].T
    return answer


def cases() -> Iterator[Any]:
    for coordinates, options in product(COORDINATES, SUMS):
        if coordinates != "tf_crop_and_resize" or "antialias" not in options:
            chosen = {"coordinate_transformation_mode": coordinates, **options}
            yield pytest.param(chosen, id=" ".join(map(str, chosen.values())))


@pytest.mark.parametrize("options", list(cases()))
def test_weights_are_those_of_the_reference(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    for factors in FACTORS:
        sizes = np.array([max(1, int(n * factor)) for n, factor in zip(x.shape, factors, strict=True)])
        for given in ({"scales": np.array(factors, np.float32)}, {"sizes": sizes}):
            constants = {"roi": ROI, **given}
            expected = resize(options, constants, x)
            np.testing.assert_allclose(own(options, constants, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_one_scale_for_all_axes_where_the_aspect_ratio_is_kept(policy: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    options = {"mode": "linear", "keep_aspect_ratio_policy": policy}
    constants = {"sizes": np.array([9, 10])}
    np.testing.assert_allclose(own(options, constants, x), resize(options, constants, x), rtol=1e-4, atol=1e-5)


def test_sizes_are_rounded_in_the_scales_own_precision() -> None:
    assert extents([5], ResizeOptions(), np.array([1.4], np.float32), None)[0][1] == 7  # 6.9999999 in float64


@pytest.mark.parametrize("wrong", ["mode", "nearest_mode", "coordinate_transformation_mode"])
def test_options_that_onnx_does_not_define(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"no {wrong}"):
        weights(3, 2, 0.5, (0, 1), ResizeOptions.of({wrong: "other"}))


def test_resize_of_the_oldest_kind_is_reported() -> None:
    made = model(
        [helper.make_node("Resize", ["x", "s"], ["y"])],
        [value("x", [2])],
        ["y"],
        {"s": np.array([2], np.float32)},
        opset=10,
    )
    with pytest.raises(UnsupportedOperators, match="before opset 11"):
        imported(made, None, None, "old")
