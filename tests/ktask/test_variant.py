"""The choice of a model's variant by the inputs of an invocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import InvalidRequest, MissingInput, NotContiguous, NoVariant, UndecidedVariant, UnexpectedInput
from kaas.ktask.variant import by_position, choose, of_shapes
from tests.exporters import Exporter

REFERENCE = object()


def takes(*shape: int, dtype: str = "float32", ids: str = "int64") -> dict[str, kaas.Buffer]:
    return {"x": kaas.Buffer("x", shape, dtype), "ids": kaas.Buffer("ids", shape[0], ids)}


VARIANTS = [takes(1, 4), takes(4, 1), takes(8, 4), takes(8, 4, dtype="float16")]


def chosen(x: Any, ids: Any = REFERENCE) -> int:
    return choose("m", VARIANTS, {"ids": ids, "x": x}, lambda value: value is REFERENCE)


class Tensor:
    """An array as PyTorch's: its dtype has another type, whose text ends with our name."""

    def __init__(self, *shape: int, dtype: str = "torch.float32") -> None:
        self.shape, self.dtype = shape, dtype


def test_shapes_and_dtypes_decide() -> None:
    assert chosen(np.zeros((1, 4), np.float32)) == 0
    assert chosen(np.zeros((4, 1), np.float32)) == 1  # as many bytes
    assert chosen(np.zeros((8, 4), np.float32)) == 2
    assert chosen(np.zeros((8, 4), np.float16)) == 3
    assert chosen(Tensor(8, 4, dtype="torch.float16")) == 3
    assert chosen(Exporter(np.zeros((8, 4), np.float16))) == 3


def test_of_bytes_the_number_decides() -> None:
    assert chosen(bytes(128)) == 2
    assert chosen(memoryview(bytes(64))) == 3
    assert chosen(memoryview(np.zeros((4, 1), np.float32))) == 1  # type: ignore[arg-type]
    with pytest.raises(UndecidedVariant, match="x: 16 bytes"):
        chosen(bytes(16))


def test_one_input_decides_for_a_reference() -> None:
    assert chosen(REFERENCE, np.zeros(1, np.int64)) == 0
    assert chosen(kaas.View(b"", 4), np.zeros(4, np.int64)) == 1
    assert choose("m", VARIANTS[:1], {"x": REFERENCE, "ids": REFERENCE}, lambda value: value is REFERENCE) == 0
    with pytest.raises(UndecidedVariant) as caught:
        chosen(REFERENCE, np.zeros(8, np.int64))
    assert caught.value.given == {"x": "unknown", "ids": "int64[8]"}
    assert caught.value.variants == (
        {"x": "float32[8, 4]", "ids": "int64[8]"},
        {"x": "float16[8, 4]", "ids": "int64[8]"},
    )
    assert "f.variant(name=shape)" in caught.value.message


def test_no_variant() -> None:
    with pytest.raises(NoVariant, match=r"not compiled for .*x: float64\[8, 4\].*but for x: float32\[1, 4\]") as caught:
        chosen(np.zeros((8, 4)))
    assert type(caught.value) is NoVariant
    assert len(caught.value.variants) == len(VARIANTS)
    for x in (np.zeros((2, 4), np.float32), np.zeros(4, np.float32), bytes(3), Tensor(8, 4, dtype="torch.qint8")):
        with pytest.raises(NoVariant):
            chosen(x)
    with pytest.raises(NotContiguous, match="a Python list was given"):
        chosen([1.0] * 4)


def test_bytes_are_taken_by_their_number() -> None:
    variants = [{"x": kaas.Buffer("x", (n, 2), "uint8")} for n in (2, 4)]
    assert choose("m", variants, {"x": np.zeros((4, 2), np.uint8)}) == 1
    assert choose("m", variants, {"x": np.zeros(2, np.int32)}) == 1
    with pytest.raises(NoVariant):
        choose("m", variants, {"x": np.zeros((2, 4), np.uint8)})


def test_names_are_checked_first() -> None:
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(MissingInput, match="'m': input 'ids'"):
        choose("m", VARIANTS, {"x": x})
    with pytest.raises(UnexpectedInput, match="did you mean 'ids'"):
        choose("m", VARIANTS, {"x": x, "ids": x, "idx": x})


def test_by_shapes_alone() -> None:
    assert of_shapes("m", VARIANTS, {"x": (4, 1)}) == 1
    assert of_shapes("m", VARIANTS, {"ids": 1}) == 0
    with pytest.raises(UndecidedVariant):
        of_shapes("m", VARIANTS, {"x": (8, 4)})
    with pytest.raises(NoVariant, match=r"x: \?\[7, 4\]"):
        of_shapes("m", VARIANTS, {"x": (7, 4)})
    with pytest.raises(UnexpectedInput):
        of_shapes("m", VARIANTS, {"z": (8, 4)})
    with pytest.raises(InvalidRequest, match="a shape is integers"):
        of_shapes("m", VARIANTS, {"x": "8x4"})  # type: ignore[dict-item]


def test_by_position() -> None:
    taken = VARIANTS[0]
    assert by_position("m", taken, [1, 2], {}) == {"x": 1, "ids": 2}
    assert by_position("m", taken, [1], {"ids": 2, "z": 3}) == {"x": 1, "ids": 2, "z": 3}
    with pytest.raises(InvalidRequest, match=r"'m' takes 2 inputs \(x, ids\), not 3"):
        by_position("m", taken, [1, 2, 3], {})
    with pytest.raises(InvalidRequest, match="'x' is given by position and by name"):
        by_position("m", taken, [1], {"x": 1})
