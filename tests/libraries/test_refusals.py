"""A call without a meaning is a typed error when the kernel is made: the error's fields, message and pickling."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kaas
from cutlass_blas import Epilogue, Matrix, errors, gemm


def buffer(name: str, *shape: int, dtype: str = "float32") -> kaas.Buffer:
    return kaas.Buffer(name, shape, dtype)


A, B, C = buffer("a", 4, 6), buffer("b", 6, 5), buffer("c", 4, 5)
A3, B3, C3 = buffer("a", 3, 4, 6), buffer("b", 3, 6, 5), buffer("c", 3, 4, 5)
COMPLEX = [kaas.Buffer(one.name, one.shape, "complex64") for one in (A, B, C)]
HALVES = [kaas.Buffer(one.name, one.shape, "float16") for one in (A, B, C)]
FLAT, LONG = buffer("flat", 100), buffer("long", 1000)
BIAS = buffer("bias", 5)

Wrong = tuple[Callable[[], object], type[errors.BlasError], dict[str, Any], str]

WRONG: dict[str, Wrong] = {
    # --- shapes
    "inner sizes": (
        lambda: gemm(A, buffer("b", 7, 5), C),
        errors.ShapeMismatch,
        {"shapes": {"a": (4, 6), "b": (7, 5), "c": (4, 5)}},
        r"(?s)4.*6.*7.*5",
    ),
    "inner sizes, transposed": (
        lambda: gemm(A, B, C, trans_a="t"),
        errors.ShapeMismatch,
        {"shapes": {"a": (4, 6), "b": (6, 5), "c": (4, 5)}},
        "trans",
    ),
    "rows of c": (lambda: gemm(A, B, buffer("c", 3, 5)), errors.ShapeMismatch, {}, r"3.*5"),
    "columns of c": (lambda: gemm(A, B, buffer("c", 4, 6)), errors.ShapeMismatch, {}, r"4.*6"),
    "c is transposed": (lambda: gemm(A, B, buffer("c", 5, 4)), errors.ShapeMismatch, {}, r"5.*4"),
    "batches of two counts": (lambda: gemm(A3, buffer("b", 2, 6, 5), C3), errors.ShapeMismatch, {}, "3.*2|2.*3"),
    "c of another count": (lambda: gemm(A3, B3, buffer("c", 2, 4, 5)), errors.ShapeMismatch, {}, "3.*2|2.*3"),
    "a batch into one matrix": (lambda: gemm(A3, B3, C), errors.ShapeMismatch, {}, "batch|3"),
    "lists of two lengths": (lambda: gemm([A, A], [B], [C, buffer("d", 4, 5)]), errors.ShapeMismatch, {}, "2.*1|1.*2"),
    "lists of matrices of two shapes": (
        lambda: gemm([A, buffer("e", 5, 6)], [B, B], [C, buffer("d", 4, 5)]),
        errors.InvalidOperand,
        {"operand": "a[1]", "buffer": "e", "shape": (5, 6)},
        r"5.*6",
    ),
    "bias too short": (
        lambda: gemm(A, B, C, epilogue=Epilogue(bias=buffer("bias", 4))),
        errors.ShapeMismatch,
        {},
        "bias.*5",
    ),
    "bias of a column-major product": (
        lambda: gemm(A, B, C, layout="column", epilogue=Epilogue(bias=BIAS)),
        errors.ShapeMismatch,
        {},
        "bias.*4",
    ),
    "beyond 32 bits": (
        lambda: gemm(buffer("a", 1 << 31, 1), buffer("b", 1, 1), buffer("c", 1 << 31, 1)),
        errors.ProblemTooLarge,
        {"sizes": {"m": 1 << 31, "n": 1, "k": 1}},
        "2147483648",
    ),
    "a sum beyond 30 bits": (
        lambda: gemm(buffer("a", 1, 1 << 30), buffer("b", 1 << 30, 1), buffer("c", 1, 1)),
        errors.ProblemTooLarge,
        {"sizes": {"m": 1, "n": 1, "k": 1 << 30}, "limit": (1 << 30) - 1},
        "1073741823",
    ),
    # --- no matrix
    "an array": (lambda: gemm([[1.0]], B, C), errors.InvalidOperand, {"operand": "a[0][0]"}, "a"),  # type: ignore[list-item]
    "nothing": (lambda: gemm(A, None, C), errors.InvalidOperand, {"operand": "b"}, "None"),  # type: ignore[arg-type]
    "an access": (lambda: gemm(kaas.In(A), B, C), errors.InvalidOperand, {"operand": "a"}, "In"),  # type: ignore[arg-type]
    "a vector": (
        lambda: gemm(buffer("a", 6), B, C),
        errors.InvalidOperand,
        {"operand": "a", "buffer": "a", "shape": (6,)},
        r"6",
    ),
    "four dimensions": (
        lambda: gemm(A, B, buffer("c", 1, 1, 4, 5)),
        errors.InvalidOperand,
        {"operand": "c", "shape": (1, 1, 4, 5)},
        "1, 1, 4, 5",
    ),
    "an empty list": (lambda: gemm([], [], []), errors.BlasError, {}, "a"),
    "a list of strings": (lambda: gemm(["a"], [B], [C]), errors.InvalidOperand, {"operand": "a[0]"}, "'a'"),  # type: ignore[list-item]
    "a batch in a list": (lambda: gemm([A3], [B], [C]), errors.BlasError, {}, "3, 4, 6|batch|3-D"),
    # --- views
    "ld too small": (
        lambda: gemm(Matrix(FLAT, 4, 6, ld=5), B, C),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "5.*6|6.*5",
    ),
    "ld too small, column": (
        lambda: gemm(Matrix(FLAT, 4, 6, ld=3), Matrix(LONG, 6, 5, ld=6), C, layout="column"),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "3.*4|4.*3",
    ),
    "ld below zero": (lambda: gemm(Matrix(FLAT, 4, 6, ld=-6), B, C), errors.InvalidOperand, {"buffer": "flat"}, "-6"),
    "ld no number": (lambda: gemm(Matrix(FLAT, 4, 6, ld="6"), B, C), errors.InvalidOperand, {"buffer": "flat"}, "'6'"),  # type: ignore[arg-type]
    "view outside": (
        lambda: gemm(Matrix(FLAT, 4, 6, offset=77), B, C),
        errors.InvalidOperand,
        {"buffer": "flat", "shape": (100,)},
        "101.*100|100.*101",
    ),
    "offset below zero": (
        lambda: gemm(Matrix(FLAT, 4, 6, offset=-1), B, C),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "-1",
    ),
    "view of rows outside": (
        lambda: gemm(Matrix(FLAT, 4, 6, ld=32), B, C),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "102",
    ),
    "rows below zero": (lambda: gemm(Matrix(FLAT, -4, 6), B, C), errors.InvalidOperand, {"buffer": "flat"}, "-4"),
    "half a row": (lambda: gemm(Matrix(FLAT, 4.5, 6), B, C), errors.InvalidOperand, {"buffer": "flat"}, "4.5"),  # type: ignore[arg-type]
    "true rows": (lambda: gemm(Matrix(FLAT, True, 6), B, C), errors.InvalidOperand, {"buffer": "flat"}, "True"),
    "a view of nothing": (lambda: gemm(Matrix("flat", 4, 6), B, C), errors.InvalidOperand, {}, "'flat'"),  # type: ignore[arg-type]
    "batch outside": (
        lambda: gemm(Matrix(FLAT, 4, 6, count=5, stride=24), B, buffer("c", 5, 4, 5)),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "120",
    ),
    "count below zero": (
        lambda: gemm(Matrix(FLAT, 4, 6, count=-1), B, C3),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "-1",
    ),
    "stride below zero": (
        lambda: gemm(Matrix(FLAT, 4, 6, offset=48, count=3, stride=-24), B, C3),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "-24",
    ),
    "an ld that no 64 bits count": (
        lambda: gemm(Matrix(FLAT, 1, 6, ld=1 << 63), B, buffer("c", 1, 5)),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "9223372036854775808",
    ),
    "a stride that no 64 bits count": (
        lambda: gemm(A, B, Matrix(FLAT, 4, 5, count=1, stride=1 << 70)),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "1180591620717411303424",
    ),
    "strides of many empty rows": (
        lambda: gemm(Matrix(FLAT, 1 << 30, 0, 1 << 61, count=1), B, C3),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "beyond",
    ),
    # --- dtypes
    "integers": (
        lambda: gemm(*(buffer(name, 4, 4, dtype="int32") for name in "abc")),
        errors.InvalidDtype,
        {"dtypes": {"a": "int32"}},
        "int32",
    ),
    "float8": (
        lambda: gemm(*(buffer(name, 4, 4, dtype="float8_e4m3fn") for name in "abc")),
        errors.InvalidDtype,
        {},
        "float8_e4m3fn",
    ),
    "a and b differ": (
        lambda: gemm(A, buffer("b", 6, 5, dtype="float64"), C),
        errors.InvalidDtype,
        {"dtypes": {"a": "float32", "b": "float64", "c": "float32"}},
        "float32.*float64|float64.*float32",
    ),
    "c differs": (lambda: gemm(A, B, buffer("c", 4, 5, dtype="float64")), errors.InvalidDtype, {}, "float64"),
    "complex into real": (lambda: gemm(COMPLEX[0], COMPLEX[1], C), errors.InvalidDtype, {}, "complex64"),
    "half into bfloat": (
        lambda: gemm(HALVES[0], HALVES[1], buffer("c", 4, 5, dtype="bfloat16")),
        errors.InvalidDtype,
        {},
        "bfloat16",
    ),
    "lists of two leading dimensions": (
        lambda: gemm([A, Matrix(FLAT, 4, 6, ld=8)], [B, B], [C, buffer("d", 4, 5)]),
        errors.InvalidOperand,
        {"operand": "a[1]", "buffer": "flat"},
        "6.*8",
    ),
    "a list in a list": (lambda: gemm([[A]], [B], [C]), errors.InvalidOperand, {}, "list"),  # type: ignore[list-item]
    "stride without count": (
        lambda: gemm(Matrix(FLAT, 4, 6, stride=24), B, C),
        errors.InvalidOperand,
        {"buffer": "flat"},
        "24",
    ),
    "one of a list differs": (
        lambda: gemm([A, buffer("e", 4, 6, dtype="float64")], [B, B], [C, buffer("d", 4, 5)]),
        errors.InvalidDtype,
        {},
        "float64",
    ),
    "bias of another dtype": (
        lambda: gemm(A, B, C, epilogue=Epilogue(bias=buffer("bias", 5, dtype="float64"))),
        errors.InvalidDtype,
        {},
        "bias",
    ),
    # --- options
    "trans": (
        lambda: gemm(A, B, C, trans_a="x"),
        errors.InvalidOption,
        {"option": "trans_a", "value": "'x'"},
        '"n", "t"',
    ),
    "trans as a truth": (lambda: gemm(A, B, C, trans_b=True), errors.InvalidOption, {"option": "trans_b"}, "True"),  # type: ignore[arg-type]
    "trans of nothing": (lambda: gemm(A, B, C, trans_b=None), errors.InvalidOption, {"option": "trans_b"}, "None"),  # type: ignore[arg-type]
    "layout": (
        lambda: gemm(A, B, C, layout="F"),
        errors.InvalidOption,
        {"option": "layout"},
        "row.*column|column.*row",
    ),
    "epilogue": (lambda: gemm(A, B, C, epilogue="tanh"), errors.InvalidOption, {}, "tanh"),
    "activation": (
        lambda: gemm(A, B, C, epilogue=Epilogue(activation="swish")),
        errors.InvalidOption,
        {},
        "relu or gelu.*swish",
    ),
    "an epilogue that is a bias": (lambda: gemm(A, B, C, epilogue=BIAS), errors.InvalidOption, {}, "bias|Epilogue"),  # type: ignore[arg-type]
    "relu of complex numbers": (lambda: gemm(*COMPLEX, epilogue="relu"), errors.InvalidOption, {}, "complex"),
    "gelu of complex numbers": (
        lambda: gemm(*COMPLEX, epilogue=Epilogue(activation="gelu")),
        errors.InvalidOption,
        {},
        "complex",
    ),
    "bias that is a number": (lambda: gemm(A, B, C, epilogue=Epilogue(bias=1.0)), errors.BlasError, {}, "1.0"),  # type: ignore[arg-type]
    "bias that is a matrix": (
        lambda: gemm(A, B, C, epilogue=Epilogue(bias=buffer("bias", 4, 5))),
        errors.BlasError,
        {},
        "bias",
    ),
    "no slices": (lambda: gemm(A, B, C, split_k=0), errors.InvalidOption, {"option": "split_k", "value": "0"}, "0"),
    "less than no slices": (lambda: gemm(A, B, C, split_k=-2), errors.InvalidOption, {"option": "split_k"}, "-2"),
    "slices in words": (lambda: gemm(A, B, C, split_k="2"), errors.InvalidOption, {"option": "split_k"}, "'2'"),  # type: ignore[arg-type]
    "more slices than a grid holds": (
        lambda: gemm(A, B, C, split_k=10**30),
        errors.InvalidOption,
        {"option": "split_k"},
        "65535",
    ),
    "half a slice": (lambda: gemm(A, B, C, split_k=1.5), errors.InvalidOption, {"option": "split_k"}, "1.5"),  # type: ignore[arg-type]
    "true slices": (lambda: gemm(A, B, C, split_k=True), errors.InvalidOption, {"option": "split_k"}, "True"),
    "compute": (lambda: gemm(A, B, C, compute="fp8"), errors.InvalidOption, {"option": "compute"}, "tf32"),
    "tf32 of doubles": (
        lambda: gemm(*(buffer(name, 4, 4, dtype="float64") for name in "abc"), compute="tf32"),
        errors.InvalidOption,
        {"option": "compute"},
        "float64",
    ),
    "architecture": (lambda: gemm(A, B, C, arch="sm_20"), errors.InvalidOption, {"option": "arch"}, "sm_20"),
    "architectures": (lambda: gemm(A, B, C, arch=["sm_80"]), errors.InvalidOption, {"option": "arch"}, "sm_80"),  # type: ignore[arg-type]
    "layouts": (
        lambda: gemm(A, B, C, layout=np.array(["row", "column"])),  # type: ignore[arg-type]
        errors.InvalidOption,
        {"option": "layout"},
        "row.*column",
    ),
    "several ways to compute": (
        lambda: gemm(A, B, C, compute=np.ones(2)),  # type: ignore[arg-type]
        errors.InvalidOption,
        {"option": "compute"},
        "tf32",
    ),
    "architecture by number": (lambda: gemm(A, B, C, arch=80), errors.InvalidOption, {"option": "arch"}, "80"),  # type: ignore[arg-type]
    # --- scalars
    "alpha complex": (
        lambda: gemm(A, B, C, alpha=1j),
        errors.InvalidScalar,
        {"scalar": "alpha", "value": "1j", "kind": "f32"},
        "f32|real|float32",
    ),
    "beta complex": (
        lambda: gemm(A, B, C, beta=1 + 0j),
        errors.InvalidScalar,
        {"scalar": "beta", "kind": "f32"},
        "beta",
    ),
    "alpha in words": (
        lambda: gemm(A, B, C, alpha="1"),
        errors.InvalidScalar,
        {"scalar": "alpha", "value": "'1'"},
        "'1'",
    ),
    "alpha missing": (lambda: gemm(A, B, C, alpha=None), errors.InvalidScalar, {"scalar": "alpha"}, "None"),
    "alpha a list": (lambda: gemm(A, B, C, alpha=[1.0]), errors.InvalidScalar, {"scalar": "alpha"}, "1.0"),
    "alpha too large": (
        lambda: gemm(A, B, C, alpha=1e39),
        errors.InvalidScalar,
        {"scalar": "alpha", "kind": "f32"},
        "1e\\+39",
    ),
    "alpha far too large": (lambda: gemm(A, B, C, alpha=10**400), errors.InvalidScalar, {"scalar": "alpha"}, "alpha"),
    "Scalar of another kind": (
        lambda: gemm(A, B, C, alpha=kaas.Scalar("x", "f64")),
        errors.InvalidScalar,
        {"scalar": "alpha", "kind": "f32"},
        "f64.*f32|f32.*f64",
    ),
    "Scalar of half precision": (
        lambda: gemm(*HALVES, beta=kaas.Scalar("x", "f16")),
        errors.InvalidScalar,
        {"scalar": "beta", "kind": "f32"},
        "f16.*f32|f32.*f16",
    ),
    "real Scalar of complex numbers": (
        lambda: gemm(*COMPLEX, alpha=kaas.Scalar("x", "f32")),
        errors.InvalidScalar,
        {"kind": "c64"},
        "c64",
    ),
    "a literal": (lambda: gemm(A, B, C, alpha=kaas.f32(2)), errors.InvalidScalar, {"scalar": "alpha"}, "f32"),
    # --- one memory
    "c is a": (
        lambda: gemm(buffer("a", 4, 4), buffer("b", 4, 4), buffer("a", 4, 4)),
        errors.OverlappingOperands,
        {"buffer": "a"},
        "a",
    ),
    "c is b": (
        lambda: gemm(buffer("a", 4, 4), buffer("b", 4, 4), buffer("b", 4, 4)),
        errors.OverlappingOperands,
        {"buffer": "b"},
        "b",
    ),
    "c and a in one buffer": (
        lambda: gemm(Matrix(FLAT, 4, 6), B, Matrix(FLAT, 4, 5, offset=40)),
        errors.OverlappingOperands,
        {"buffer": "flat"},
        "flat",
    ),
    "c twice": (lambda: gemm([A, A], [B, B], [C, C]), errors.OverlappingOperands, {"buffer": "c"}, "c"),
    "two of c overlap": (
        lambda: gemm([A, A], [B, B], [Matrix(FLAT, 4, 5), Matrix(FLAT, 4, 5, offset=19)]),
        errors.OverlappingOperands,
        {"buffer": "flat"},
        "flat",
    ),
    "a batch of c on itself": (
        lambda: gemm(A3, B3, Matrix(FLAT, 4, 5, count=3, stride=19)),
        errors.BlasError,
        {"buffer": "flat"},
        r"c\[0\] and c\[1\]",
    ),
    "c is the bias": (
        lambda: gemm(buffer("a", 1, 6), B, Matrix(BIAS, 1, 5), epilogue=Epilogue(bias=BIAS)),
        errors.OverlappingOperands,
        {"buffer": "bias"},
        "bias",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case: str) -> None:
    call, error_type, fields, words = WRONG[case]
    with pytest.raises(errors.BlasError, match=words) as raised:
        call()
    error = raised.value
    assert isinstance(error, error_type)
    assert {name: error.fields.get(name) for name in fields} == fields
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.fields) == (str(error), error.fields)


def test_nothing_is_launched_for_a_refused_call() -> None:
    """A wrong call in the middle of a list of kernels raises: no kernel is made, and none has a side effect."""
    kernels = [*gemm(A, B, C)]
    with pytest.raises(errors.ShapeMismatch):
        kernels += gemm(C, B, buffer("d", 4, 5))
    assert len(kernels) == 1


def test_known_shapes_are_checked_too() -> None:
    """A remembered plan of a shape does not replace the check of its matrices' addresses."""
    assert gemm([A, A], [B, B], [Matrix(FLAT, 4, 5), Matrix(FLAT, 4, 5, offset=20)])
    with pytest.raises(errors.OverlappingOperands):
        gemm([A, A], [B, B], [Matrix(FLAT, 4, 5), Matrix(FLAT, 4, 5, offset=19)])
    assert gemm(A, B, C, epilogue=Epilogue(bias=BIAS))
    with pytest.raises(errors.OverlappingOperands):
        gemm(A, B, C, epilogue=Epilogue(bias=kaas.Buffer("c", 5, "float32")))


def test_odd_calls_that_are_allowed() -> None:
    """a and b may be one buffer, c may lie in several places of a buffer, letters may be capitals, sizes may be 0."""
    square, out = buffer("a", 4, 4), buffer("c", 4, 4)
    assert gemm(square, square, out)
    assert gemm([A, A], [B, B], [Matrix(FLAT, 4, 5), Matrix(FLAT, 4, 5, offset=20)])
    assert gemm(A, B, Matrix(FLAT, 4, 5, ld=6))
    assert gemm(buffer("a", 6, 4), B, C, trans_a="T")
    assert gemm(buffer("a", 0, 6), B, buffer("c", 0, 5))
    assert gemm(buffer("a", 4, 0), buffer("b", 0, 5), C)
    assert gemm(A, B, C, epilogue=Epilogue())
    assert len(gemm(A, B, C, split_k=np.int64(2))) == 2  # type: ignore[arg-type]


def leaves(cls: type[errors.BlasError]) -> list[type[errors.BlasError]]:
    found = [leaf for child in cls.__subclasses__() for leaf in leaves(child)]
    return found or [cls]


@pytest.mark.parametrize("cls", leaves(errors.BlasError), ids=lambda cls: cls.__name__)
def test_each_error_has_a_docstring(cls: type[errors.BlasError]) -> None:
    assert cls.__doc__
    assert issubclass(cls, kaas.KaasError)
