"""Instances: their names, impossible ones, and the adapter's launches of those of the core."""

from __future__ import annotations

import itertools
import pickle
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_blas import adapter, instances, sources, store
from cutlass_blas.instances import CORE, Instance, parse
from kaas import errors
from softgpu.image import PTX_KIND, entries
from tests.libraries.built_first import sample

SCALARS = {"s": "<f", "d": "<d", "c": "<2f", "z": "<2d", "h": "<f", "b": "<f", "t": "<f"}
NO_STRIDES = (0, 0, 0, 0)
IDS = [instance.name for instance in CORE]


DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
BYTES = {"s": 4, "d": 8, "c": 8, "z": 16, "h": 2, "b": 2, "t": 4}


@st.composite
def made(draw: st.DrawFn) -> Instance:
    kind = draw(st.sampled_from(list(instances.OUTS)))
    out = draw(st.sampled_from(instances.OUTS[kind]))
    unit = draw(st.sampled_from(instances.UNITS[kind]))
    ops = st.sampled_from("ntc" if kind in "cz" else "nt")
    across = st.sampled_from((64, 128, 256))
    tile = draw(st.tuples(across, across, st.sampled_from((16, 32))))
    warps = draw(st.sampled_from([(m, n) for m in (1, 2, 4) for n in (1, 2, 4)]))
    align, align_c = 1, 1
    if unit == "tensor":
        align = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n * BYTES[kind] <= 16]))
        align_c = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n * DTYPE_BYTES[out] <= 16]))
    stages = draw(st.integers(3, 5)) if align * BYTES[kind] >= 4 else 2
    gelu = kind not in "cz" and draw(st.booleans())
    warp = (tile[0] // warps[0], tile[1] // warps[1], tile[2])
    return Instance(kind, out, draw(ops), draw(ops), unit, tile, warp, stages, align, align_c, gelu)


@given(made())
def test_a_name_determines_its_instance(instance: Instance) -> None:
    assert parse(instance.name) == instance
    assert re.fullmatch(r"\w+", instance.name)  # a C++ identifier


@given(made(), made())
def test_names_are_apart(one: Instance, other: Instance) -> None:
    assert (one == other) == (one.name == other.name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sgemm", "no kernel of the BLAS library"),
        ("sgemm_nn_64x64x8_2 ", "no kernel of the BLAS library"),
        ("xgemm_nn_64x64x8_2", "no kernel of the BLAS library"),
        ("sgemm_nc_64x64x8_2", "op is one of n, t"),
        ("cgemm_nn_64x64x8_2", "at least 3 stages"),
        ("sgemm_nn_64x64x8_2_tensor", "computed by simt"),
        ("sgemm_nn_64x64x8_2_w32x24x8", "do not share a tile"),
        ("sgemm_nn_64x64x8_2_a4", "single elements"),
        ("hgemm_nn_64x64x32_4", "2 stages"),
        ("hgemm_nn_64x64x32_4_a16", "align is one of"),
        ("tgemm_nn_64x64x16_4_a8", "align is one of"),
        ("hgemm_nn_64x64x32_4_a8_float64", "the result of kind"),
        ("cgemm_nn_64x64x8_3_gelu", "real numbers"),
        ("sgemm_nn_0x64x8_2", "at least 1"),
        ("hgemm_nn_64x64x24_4_a8", "a multiple of"),
        ("sgemm_nn_64x64x8_2_w32x32x8", "it is 'sgemm_nn_64x64x8_2'"),
        ("sgemm_nn_064x64x8_2", "it is 'sgemm_nn_64x64x8_2'"),
    ],
)
def test_the_error_of_an_impossible_kernel_has_the_reason(name: str, why: str) -> None:
    with pytest.raises(errors.UnknownSymbol, match=why) as raised:
        parse(name)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.message, again.fields) == (raised.value.message, raised.value.fields)


def test_the_core_is_small_and_serves_every_kind_and_pair_of_ops() -> None:
    assert len(CORE) == len(set(CORE)) <= 60
    assert {instance.kind for instance in CORE} == set(instances.OUTS)
    pairs = {instance.kind: set[str]() for instance in CORE}
    for instance in CORE:
        pairs[instance.kind].add(instance.op_a + instance.op_b)
    for kind in "sd":
        assert pairs[kind] == {"nn", "nt", "tn", "tt"}
    assert pairs["c"] == {a + b for a, b in itertools.product("ntc", repeat=2)}
    assert all("nn" in found for found in pairs.values())


def ptx(name: str) -> str:
    (found,) = (entry for entry in entries(store.kernels(name)) if entry.kind == PTX_KIND)
    return found.content().decode()


def problem(instance: Instance, mode: int, count: int, mark: int = 0) -> adapter.Launch:
    """Return the launch of an aligned product of a little more than 2 x 3 tiles; `mark` changes alpha and beta."""
    m, n, k = 2 * instance.tile[0] + 8, 3 * instance.tile[1] - 8, 4 * instance.tile[2]
    leading = (m if instance.op_a != "n" else k, k if instance.op_b != "n" else n, n, n)
    alpha, beta = (scalar(instance, mark + value) for value in (3, 5))
    return adapter.launch(instance, mode, m, n, k, count, NO_STRIDES, leading, alpha, beta, False)


def scalar(instance: Instance, value: int) -> bytes:
    form = struct.Struct(SCALARS[instance.kind])
    return form.pack(*[value + part for part in range(len(form.unpack(bytes(form.size))))])


@pytest.mark.parametrize("instance", sample(CORE), ids=IDS)
def test_params_are_those_of_the_kernel(instance: Instance) -> None:
    """The struct is compiled twice, for the host and for the device."""
    launch, text = problem(instance, 0, 1), ptx(instance.name)
    assert f".entry {instance.name}(" in text
    (size,) = re.findall(rf"\.param \.align 8 \.b8 {instance.name}_param_0\[(\d+)\]", text)
    assert len(launch.params) == int(size)
    assert re.findall(r"\.maxntid (\d+)", text) == [str(launch.block)]
    assert launch.block == instance.threads


@pytest.mark.parametrize("instance", sample(CORE), ids=IDS)
def test_params_have_the_requested_values(instance: Instance) -> None:
    launch, other = problem(instance, 0, 1), problem(instance, 0, 1, mark=7)
    size = len(scalar(instance, 0))
    for at, value in ((launch.alpha, 3), (launch.beta, 5)):
        assert launch.params[at : at + size] == scalar(instance, value)
    scalars = {*range(launch.alpha, launch.alpha + size), *range(launch.beta, launch.beta + size)}
    differ = {at for at, (x, y) in enumerate(zip(launch.params, other.params, strict=True)) if x != y}
    assert differ
    assert differ <= scalars
    pointers = (launch.a, launch.b, launch.c, launch.d)
    assert pointers == tuple(range(launch.a, launch.a + 32, 8))  # they do not overlap
    assert all(launch.params[at : at + 8] == bytes(8) for at in pointers)  # zeros, to be patched
    # a swizzled grid has the blocks of adjacent tiles in one row, and a few blocks that do nothing
    assert 3 * 3 <= launch.grid[0] * launch.grid[1] <= 4 * 4
    assert launch.grid[2] == 1


def test_modes_and_sizes_decide_the_grid() -> None:
    instance = CORE[0]
    assert problem(instance, 2, 7).grid[2] == problem(instance, 3, 7).grid[2] == 7
    # four tiles of k, of 8: no more slices than there are lines of 128 bytes in k
    assert problem(instance, 1, 64).grid[2] == 1
    one = np.float32(1).tobytes()
    for sizes in ((0, 5, 5), (5, 0, 5), (0, 0, 0), (5, 5, 0)):
        launch = adapter.launch(instance, 0, *sizes, 1, NO_STRIDES, (5, 5, 5, 5), one, one, False)
        assert launch.grid == (1, 1, 1)
    tall = adapter.launch(instance, 0, 1 << 30, 8, 8, 1, NO_STRIDES, (8, 8, 8, 8), one, one, False)
    assert tall.grid == (1 << 24, 1, 1)


@pytest.mark.parametrize(
    ("name", "sizes", "leading", "why"),
    [
        ("hgemm_nn_64x64x32_4_a8", (8, 8, 12), (12, 8, 8, 8), "not multiples"),
        ("hgemm_nn_64x64x32_4_a8", (8, 8, 8), (12, 8, 8, 8), "not multiples"),
        ("hgemm_nn_64x64x32_4_a8", (8, 8, 8), (8, 8, 12, 8), "not multiples"),
        ("sgemm_nn_64x64x8_2", (8, 1 << 31, 8), (8, 8, 8, 8), "more than"),
        ("sgemm_nn_64x64x8_2", (8, (1 << 31) - 1, 8), (8, 8, 8, 8), "more than"),
        ("sgemm_nn_64x64x8_2", (-1, 8, 8), (8, 8, 8, 8), "more than"),
    ],
)
def test_problems_that_an_instance_cannot_compute_are_refused(
    name: str, sizes: tuple[int, int, int], leading: tuple[int, int, int, int], why: str
) -> None:
    one = np.float32(1).tobytes()
    with pytest.raises(errors.InvalidGraph, match=why):
        adapter.launch(parse(name), 0, *sizes, 1, NO_STRIDES, leading, one, one, False)


def test_names_of_the_core_have_versions_of_their_own() -> None:
    versions = {sources.version(instance.name) for instance in CORE}
    assert len(versions) == len(CORE)
