"""`Library.kernel`: names found, arguments expanded and checked, by the signatures of the library."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kaas
from kaas.errors import CorruptImage, InvalidGraph, InvalidLiteral, UnknownSymbol
from kaas.ktask.arguments import Argument
from kaas.ktask.library import Image
from kaas.ktask.signature import (
    ArrayParameter,
    ComplexParameter,
    KernelSignature,
    NumberParameter,
    Parameter,
    PointerParameter,
    ScratchParameter,
)
from kaas.ktask.symbols import kernels_of, mangled_start, source_name

PTX = """.version 8.0
.target sm_80
.address_size 64
// .entry commented_out ()
.visible .entry _Z5scaleIfEvPT_i() { ret; }
.visible .entry _Z5scaleIiEvPT_i() { ret; }
.visible .entry _ZN4deep4downEv() { ret; }
.entry plain() { ret; }
"""
ONE = PTX[: PTX.index(".visible")] + ".entry only(.param .u64 a) { ret; }"
X = kaas.Buffer("x", (4, 6), "float32")


def library(*parameters: Parameter, **known: Any) -> kaas.Library:
    entry = KernelSignature("only", "mine", parameters=parameters, **known)
    return kaas.Library((Image("ptx", ONE.encode()),), entries=[entry])


def launch(parameter: Parameter, argument: Any) -> tuple[Argument, ...]:
    return library(parameter).kernel(grid=1, block=32, args=[argument]).args


# --- kernels by name


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("plain", "plain"),
        ("_Z5scaleIfEvPT_i", "_Z5scaleIfEvPT_i"),
        ("scale<int>", "_Z5scaleIiEvPT_i"),
        ("deep::down", "_ZN4deep4downEv"),
    ],
)
def test_names_of_kernels(name: str, symbol: str) -> None:
    entries = [KernelSignature("_Z5scaleIfEvPT_i", "scale<float>"), KernelSignature("_Z5scaleIiEvPT_i", "scale<int>")]
    kernels = kaas.Library((Image("ptx", PTX.encode()),), entries=entries)
    assert kernels.kernel(name, grid=2, block=64, args=[]) == kaas.Kernel(kernels, symbol, 2, 64, [])


@pytest.mark.parametrize("name", ["scale", "Plain", "commented_out"])
def test_names_of_no_kernel_or_of_several(name: str) -> None:
    with pytest.raises(UnknownSymbol) as raised:
        kaas.Library.from_ptx(PTX).kernel(name, grid=1, block=1, args=[])
    assert raised.value.symbol == name


def test_an_only_kernel_need_not_be_named() -> None:
    assert kaas.Library.from_ptx(ONE).kernel(grid=1, block=1, args=[kaas.In(X)]).symbol == "only"
    with pytest.raises(InvalidGraph, match="deep"):
        kaas.Library.from_ptx(PTX).kernel(grid=1, block=1, args=[])


def test_kernels_of_a_fatbin_must_be_named() -> None:
    fatbin = kaas.Library.from_fatbin(b"\x50\xed\x55\xba\x01\x00\x10\x00" + (8).to_bytes(8, "little") + bytes(8))
    assert fatbin.kernel("anything", grid=1, block=1, args=[]).symbol == "anything"
    with pytest.raises(InvalidGraph, match="say which kernel"):
        fatbin.kernel(grid=1, block=1, args=[])


def test_kernels_of_cubins_and_ptx_are_the_same() -> None:
    source = "namespace deep { __global__ void down(int) {} }\n__device__ int helper(int x) { return x; }\n"
    source += 'extern "C" __global__ void plain(int *x) { *x = helper(*x); }'
    cubin, ptx = (kaas.Library.from_cuda(source, arch) for arch in ("sm_80", "compute_80"))
    assert set(kernels_of(cubin.images)) == set(kernels_of(ptx.images)) == {"plain", "_ZN4deep4downEi"}


def test_a_corrupt_cubin_is_refused() -> None:
    (whole,) = (image.data for image in kaas.Library.from_cuda('extern "C" __global__ void k() {}', "sm_80").images)
    assert kernels_of(kaas.Library.from_cubin(whole).images) == ("k",)
    broken = whole[:62] + b"\xff\xff" + whole[64:]  # the number of the section that holds the names of sections
    with pytest.raises(CorruptImage, match="tables"):
        kaas.Library.from_cubin(broken).kernel(grid=1, block=1, args=[])


# --- launches


def test_values_that_the_code_fixes_may_be_left_out_or_repeated() -> None:
    fixed = library(block=(128, 1, 1), shared_bytes=64)
    kernel = fixed.kernel(grid=3, args=[])
    assert (kernel.block, kernel.shared_bytes) == ((128, 1, 1), 64)
    assert fixed.kernel("mine", grid=3, args=[], block=128, shared_bytes=64) == kernel
    with pytest.raises(InvalidGraph, match="block"):
        fixed.kernel(grid=3, args=[], block=64)
    with pytest.raises(InvalidGraph, match="shared_bytes"):
        fixed.kernel(grid=3, args=[], shared_bytes=0)
    with pytest.raises(InvalidGraph, match="block"):
        library().kernel(grid=3, args=[])


def test_arguments_by_name_and_in_order() -> None:
    kernels = library(PointerParameter("x", "float32"), NumberParameter("n", "i32"))
    in_order = kernels.kernel(grid=1, block=1, args=[kaas.In(X), 5])
    assert in_order.args == (kaas.In(X), kaas.i32(5))
    assert kernels.kernel(grid=1, block=1, args={"n": kaas.i32(5), "x": kaas.In(X)}) == in_order
    for args in ([kaas.In(X)], [kaas.In(X), 5, 6], {"x": kaas.In(X)}, {"x": kaas.In(X), "n": 5, "m": 6}):
        with pytest.raises(InvalidGraph, match="x, n") as raised:
            kernels.kernel(grid=1, block=1, args=args)
        assert raised.value.kernel == "only"


def test_unknown_parameters_have_no_names() -> None:
    with pytest.raises(InvalidGraph, match="names"):
        kaas.Library.from_ptx(ONE).kernel(grid=1, block=1, args={"a": kaas.In(X)})


def test_scratch_memory_follows_the_arguments() -> None:
    kernel = library(scratch=(ScratchParameter(96), ScratchParameter(0))).kernel(grid=(2, 3), block=1, args=[])
    (memory, none) = kernel.args
    assert isinstance(memory, kaas.Out)
    assert (memory.buffer.nbytes, none) == (6 * 96, kaas.Null)
    task = kaas.KTask(
        [kernel, library(PointerParameter("x")).kernel(grid=1, block=1, args=[kaas.InOut(X)])], outputs=[X]
    )
    assert [buffer.name for buffer in task.inputs] == ["x"]


def test_entries_count_in_no_hash_and_travel_with_a_copy() -> None:
    with_entries, plain = library(PointerParameter("x")), kaas.Library.from_ptx(ONE)
    assert with_entries == plain
    assert pickle.loads(pickle.dumps(with_entries)).entries == with_entries.entries
    both = with_entries | kaas.Library.from_ptx(PTX)
    assert both.entries == with_entries.entries
    task = kaas.KTask([with_entries.kernel(grid=1, block=1, args=[kaas.InOut(X)])], outputs=[X])
    assert kaas.KTask.from_dict(task.to_dict()) == task


def test_libraries_that_disagree_about_a_kernel_do_not_join() -> None:
    other = kaas.Library.from_ptx(PTX)
    one = kaas.Library(other.images, entries=[KernelSignature("plain", "plain", shared_bytes=64)])
    two = kaas.Library((Image("ptx", ONE.encode()),), entries=[KernelSignature("plain", "plain", shared_bytes=128)])
    with pytest.raises(InvalidGraph, match="plain"):
        _ = one | two


# --- parameters


SCALAR = kaas.Scalar("n", "i32")


@pytest.mark.parametrize(
    ("parameter", "argument", "expanded"),
    [
        (PointerParameter("p", "float32"), kaas.Out(X, 8), (kaas.Out(X, 8),)),
        (PointerParameter("p", "float32", 16), kaas.Out(X, 32), (kaas.Out(X, 32),)),
        (PointerParameter("p", "int8"), kaas.Null, (kaas.Null,)),
        (PointerParameter("p", "int8"), kaas.In(kaas.Buffer("raw", 8)), (kaas.In(kaas.Buffer("raw", 8)),)),
        (NumberParameter("v", "i32"), np.int64(-3), (kaas.i32(-3),)),
        (NumberParameter("v", "f32"), 2, (kaas.f32(2),)),
        (NumberParameter("v", "u32"), kaas.i32(7), (kaas.i32(7),)),
        (NumberParameter("v", "u32"), SCALAR, (SCALAR,)),
        (NumberParameter("v", "i32", 16), 48, (kaas.i32(48),)),
        (NumberParameter("v", "boolean"), True, (kaas.boolean(True),)),
        (ComplexParameter("c", "c64"), 1 - 2j, (kaas.f32(1), kaas.f32(-2))),
        (ComplexParameter("c", "c128"), kaas.c128(3j), (kaas.f64(0), kaas.f64(3))),
    ],
)
def test_arguments_that_fit_are_expanded(parameter: Parameter, argument: Any, expanded: tuple[Any, ...]) -> None:
    assert launch(parameter, argument) == expanded


@pytest.mark.parametrize(
    ("parameter", "argument", "words"),
    [
        (PointerParameter("it", "int32"), kaas.In(X), "int32, not to float32"),
        (PointerParameter("it", "float32"), 5, "In, Out or InOut"),
        (PointerParameter("it"), X, "bare buffer 'x'"),
        (PointerParameter("it", "float32", 16), kaas.In(X, 8), "16 divides"),
        (NumberParameter("it", "i32"), kaas.In(X), "takes a number"),
        (NumberParameter("it", "i32"), kaas.i64(5), "is i32"),
        (NumberParameter("it", "f32"), SCALAR, "scalar 'n' is i32"),
        (NumberParameter("it", "i32", 16), SCALAR, "no Scalar promises"),
        (NumberParameter("it", "i32", 16), 40, "multiples of 16"),
        (NumberParameter("it", "i32"), kaas.Null, "Null"),
        (ComplexParameter("it", "c64"), SCALAR, "fixed number"),
        (ComplexParameter("it", "c64"), kaas.f32(1), "is c64"),
        (ArrayParameter("it", "float32", 1), kaas.In(X), "1 dimensions, not 2"),
        (ArrayParameter("it", "float64", 2), kaas.In(X), "float64, not of float32"),
        (ArrayParameter("it", "float32", 2), kaas.In(X, 12), "rows of 24 bytes"),
        (ArrayParameter("it", "float32", 2), kaas.Null, "In, Out or InOut"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(parameter: Parameter, argument: Any, words: str) -> None:
    with pytest.raises(InvalidGraph, match=words) as raised:
        launch(parameter, argument)
    assert "kernel 'mine': parameter 'it'" in raised.value.message
    assert raised.value.kernel == "only"


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [(NumberParameter("it", "i8"), 300), (NumberParameter("it", "i32"), 1.5), (ComplexParameter("it", "c64"), "1")],
)
def test_numbers_that_a_parameter_cannot_hold(parameter: Parameter, argument: Any) -> None:
    with pytest.raises(InvalidLiteral, match="parameter 'it'") as raised:
        launch(parameter, argument)
    assert raised.value.value == argument


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "int8", "complex128", "bool"]),
    data=st.data(),
)
def test_arrays_are_described_as_by_numpy(shape: list[int], dtype: str, data: st.DataObject) -> None:
    whole = np.empty(shape, dtype)
    rows = data.draw(st.integers(0, max(0, shape[0] - 1))) if whole.size else 0
    array = whole[rows:]
    skipped = rows * whole[:1].nbytes
    access = kaas.InOut(kaas.Buffer("a", shape, dtype), skipped)
    meminfo, parent, size, itemsize, pointer, *rest = launch(ArrayParameter("a", dtype, len(shape)), access)
    assert (meminfo, parent, pointer) == (kaas.Null, kaas.Null, access)
    strides = [whole.itemsize * math.prod(shape[n + 1 :]) for n in range(len(shape))]
    assert array.size == 0 or tuple(strides) == array.strides
    numbers = [array.size, array.itemsize, *array.shape, *strides]
    assert [size, itemsize, *rest] == [kaas.i64(number) for number in numbers]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z5scaleIfEvPT_i", "scale"),
        ("_ZN4deep4downEv", "deep::down"),
        ("_ZN2ns5outer1kIfLi4EEEvPT_", "ns::outer::k"),
        ("_ZN56_GLOBAL__N__0a1b2c3d_14_tmpxft_00001_00_cpp1_ii_4d1e2f3a3addEPf", "(anonymous namespace)::add"),
        ("plain", "plain"),
        ("_Zthing", "_Zthing"),
        ("_ZN", "_ZN"),
        ("_ZN2nsL4evilEPf", "ns::evil"),
        ("_ZL4evilPf", "evil"),
        ("_ZNK2ns4evilEPf", "_ZNK2ns4evilEPf"),
        ("_ZN2nsS_4evilEPf", "_ZN2nsS_4evilEPf"),
        ("_Z9999abc", "_Z9999abc"),
        ("_ZN1a1", "_ZN1a1"),
        ("_ZN" + "1a" * 1_000_000, "_ZN" + "1a" * 1_000_000),
        ("", ""),
    ],
)
def test_the_name_in_the_source(symbol: str, name: str) -> None:
    assert source_name(symbol) == name


@given(st.lists(st.from_regex("[a-z_][a-z_0-9]{0,20}", fullmatch=True), min_size=1, max_size=4))
def test_a_mangled_name_is_read_again(parts: list[str]) -> None:
    name = "::".join(parts)
    assert source_name(mangled_start(name) + ("E" if len(parts) > 1 else "") + "Pf") == name
