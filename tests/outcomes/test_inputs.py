"""An input must have its buffer's shape and dtype; otherwise the error names the right ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kaas
from kaas import errors
from tests.api.conftest import STEPS

ROWS, COLUMNS = 64, 48
N = ROWS * COLUMNS


def doubled() -> kaas.KTask:
    """y = x + x, of matrices."""
    x, y = (kaas.Buffer(name, (ROWS, COLUMNS), "float32") for name in "xy")
    kernel = kaas.Kernel(STEPS, "add", math.ceil(N / 256), 256, [kaas.In(x), kaas.In(x), kaas.Out(y), kaas.i32(N)])
    return kaas.KTask([kernel], [y], name="doubled")


MATRIX = np.arange(N, dtype=np.float32).reshape(ROWS, COLUMNS)
Run = Callable[[Any], Any]


pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("softgpu", "pool")]


def _local(x: Any) -> Any:
    return kaas.run_local(doubled(), {"x": x})["y"]


def _call(x: Any) -> Any:
    return kaas.call(doubled(), {"x": x}).result()


def _function(x: Any) -> Any:
    return kaas.register(doubled()).call(x).result()


def _constant(x: Any) -> Any:
    return kaas.register(doubled(), constants={"x": x}).call().result()


def _put(x: Any) -> Any:
    return kaas.call(doubled(), {"x": kaas.put(x)}).result()


def _model(x: Any) -> Any:
    task = doubled()
    model = kaas.CompiledModel("doubled", [kaas.Variant(task, task.inputs)], {})
    return model.run_local(x)


WAYS = {
    "run_local": _local,
    "call": _call,
    "a function": _function,
    "a constant": _constant,
    "an object": _put,
    "a model": _model,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
def test_a_matrix_of_another_shape_is_refused(way: Run) -> None:
    with pytest.raises((errors.WrongShape, errors.NoVariant), match=r"64, 48.*48, 64|48, 64.*64, 48"):
        way(np.ascontiguousarray(MATRIX.T))
    assert np.array_equal(way(MATRIX), 2 * MATRIX)


@every_way
def test_a_transposed_matrix_is_refused(way: Run) -> None:
    columns_first = np.asfortranarray(MATRIX)
    for given in (columns_first, MATRIX.T):
        with pytest.raises((errors.NotContiguous, errors.NoVariant)):
            way(given)


@pytest.mark.parametrize("way", [WAYS[name] for name in WAYS if name != "a model"])
def test_flat_arrays_bytes_and_views_are_taken_in_their_order(way: Run) -> None:
    other = np.ascontiguousarray(MATRIX.T)
    expected = 2 * other.reshape(ROWS, COLUMNS)
    for given in (other.reshape(-1), other.tobytes(), kaas.View(other)):
        if way is _put and isinstance(given, kaas.View):
            continue
        assert np.array_equal(way(given), expected)
    assert np.array_equal(way(MATRIX[None]), 2 * MATRIX)


@pytest.mark.parametrize("way", [_local, _call, _function, _constant])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (MATRIX.tolist(), r"numpy.asarray\(x, 'float32'\)"),
        (None, "None was given"),
        ("some text", r"encode text to bytes"),
        (1.5, r"numpy.asarray\(x, 'float32'\)"),
        (object(), "object is no array"),
    ],
    ids=["a list", "None", "text", "a number", "an object"],
)
def test_the_error_for_a_value_that_is_no_array_names_the_remedy(way: Run, given: Any, said: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=rf"input 'x' takes an array of float32\[64, 48\]; .*{said}"):
        way(given)
