"""Compiled models: their content, refusals and pickles."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import kaas
from kaas.errors import InvalidGraph, InvalidModel
from tests.ktask.strategies import LIBRARIES
from tests.models.models import LIBRARY, model, variant

WEIGHTS = np.zeros((4, 2), np.float32)


def test_a_model_has_variants_inputs_outputs_and_constants() -> None:
    made = model(8, 1)
    assert [one.inputs[0].shape for one in made.variants] == [(1, 4), (8, 4)]  # the smallest first
    assert (made.inputs, made.outputs) == (("x", "ids"), ("y",))
    assert made.library == LIBRARY
    assert made.constant_bytes == 32
    assert made.variants[0].constants == (kaas.Buffer("w", (4, 2), "float32"),)
    assert repr(made) == (
        "<kaas.CompiledModel 'small' for x: float32[1, 4], ids: int64[1] or x: float32[8, 4], ids: int64[8]; "
        "32 bytes of constants>"
    )


def test_constants_are_read_only_and_without_gaps() -> None:
    given = np.arange(8, dtype=np.float32).reshape(2, 4).T
    kept = kaas.CompiledModel("m", [variant(1)], {"w": given}).constants["w"]
    np.testing.assert_array_equal(kept, given)
    assert kept.flags.c_contiguous
    assert not kept.flags.writeable
    assert given.flags.writeable


def test_a_model_survives_pickle() -> None:
    made = model()
    back = pickle.loads(pickle.dumps(made))
    assert (back.name, back.variants, back.about) == (made.name, made.variants, made.about)
    np.testing.assert_array_equal(back.constants["w"], made.constants["w"])


def scaled() -> kaas.Variant:
    x, y = kaas.Buffer("x", 4), kaas.Buffer("y", 4)
    kernel = kaas.Kernel(LIBRARY, "k", 1, 1, [kaas.In(x), kaas.Out(y), kaas.Scalar("factor", "f32")])
    return kaas.Variant(kaas.KTask([kernel], [y]), (x,))


def with_output(name: str) -> kaas.Variant:
    x, w, y = kaas.Buffer("x", (2, 4), "float32"), kaas.Buffer("w", (4, 2), "float32"), kaas.Buffer(name, 4)
    task = kaas.KTask([kaas.Kernel(LIBRARY, "k", 1, 1, [kaas.In(x), kaas.In(w), kaas.Out(y)])], [y])
    return kaas.Variant(task, (x, kaas.Buffer("ids", 2, "int64")))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kaas.CompiledModel("m", [], {}), "one or more kaas.Variant"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {}), r"reads 'w' \(float32\[4, 2\]\), which is neither"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS[:3]}), "'w' has 32 bytes .* given: 24"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS.view(np.int32)}), "'w' takes float32, not int32"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": [1.0]}), "no array of numbers"),  # type: ignore[dict-item]
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS.astype(">f4")}), "no array of numbers"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS, "b": WEIGHTS}), "no variant reads constant 'b'"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS, "__metadata__": WEIGHTS}), "no file can hold"),
        (lambda: kaas.CompiledModel("m", [variant(1)], {"w": WEIGHTS}, {"a": 1}), "about maps strings"),  # type: ignore[dict-item]
        (lambda: kaas.CompiledModel("m", [variant(1), variant(1)], {"w": WEIGHTS}), "are for the same inputs"),
        (
            lambda: kaas.CompiledModel("m", [variant(1), variant(2, library=LIBRARIES[1])], {"w": WEIGHTS}),
            "of 2 libraries",
        ),
        (lambda: kaas.CompiledModel("m", [variant(1), scaled()], {"w": WEIGHTS}), "inputs of its variants differ"),
        (lambda: kaas.CompiledModel("m", [variant(1), with_output("z")], {"w": WEIGHTS}), "outputs .* differ: y and z"),
        (lambda: kaas.CompiledModel("m", [scaled()], {}), "take scalars"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidModel, match=words) as caught:
        make()
    assert caught.value.model == "m"


def test_a_model_needs_a_name() -> None:
    with pytest.raises(InvalidGraph, match="a model's name"):
        kaas.CompiledModel("", [variant(1)], {"w": WEIGHTS})


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((kaas.Buffer("x", (1, 4), "float32"),) * 2, "two inputs named 'x'"),
        ((kaas.Buffer("x", (4, 1), "float32"),), r"takes float32\[4, 1\] as 'x', which is float32\[1, 4\]"),
        ((kaas.Buffer("y", (1, 2), "float32"),), "'y' as an input, which its kernels write first"),
        ((kaas.Buffer("more", 1, init="zero"),), "'more' as an input, which starts as zeros"),
        (("x",), "are kaas.Buffers"),
    ],
)
def test_a_variant_with_inputs_that_its_kernels_do_not_read_is_refused(
    inputs: tuple[kaas.Buffer, ...], words: str
) -> None:
    with pytest.raises(InvalidModel, match=words):
        kaas.Variant(variant(1).task, inputs)


def test_a_variant_is_of_a_ktask() -> None:
    with pytest.raises(InvalidModel, match="a variant's task"):
        kaas.Variant("resnet", ())  # type: ignore[arg-type]


def test_constants_of_any_dtype() -> None:
    half = np.arange(4, dtype=np.float32).astype(ml_dtypes.bfloat16)
    y = kaas.Buffer("y", 4, "bfloat16")
    kernel = kaas.Kernel(LIBRARY, "k", 1, 1, [kaas.In(kaas.Buffer("w", 4, "bfloat16")), kaas.Out(y)])
    made = kaas.CompiledModel("m", [kaas.Variant(kaas.KTask([kernel], [y]), ())], {"w": half})
    assert made.constants["w"].dtype == ml_dtypes.bfloat16
