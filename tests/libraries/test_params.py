"""Every kernel of the core is built, and its parameters are those of CUTLASS's documents: sizes, pointers, grids."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest

from cutlass_blas import adapter, provider
from cutlass_blas.instances import CORE, Instance, parse
from kaas.code import providers
from softgpu import image
from tests.libraries.built_first import sample

ELEMENT_BYTES = {"s": 4, "d": 8, "c": 8, "z": 16, "h": 2, "b": 2, "t": 4}
SCALARS = {"s": "f4", "d": "f8", "c": "c8", "z": "c16", "h": "f4", "b": "f4", "t": "f4"}
MOST_SHARED_BYTES = 163 << 10
"""The limit of a block on compute capability 8.0."""
PTX, CUBIN = 1, 2

SHAPES = [(8, 8, 8), (1000, 136, 72), (136, 1000, 264), (4096, 4096, 4096)]
"""Sizes that are multiples of 8, which every alignment divides."""

by_name = pytest.mark.parametrize("instance", sample(CORE), ids=lambda instance: str(instance.name))


def test_the_core_is_small_and_its_names_read_back() -> None:
    assert 0 < len(CORE) <= 60
    assert len({instance.name for instance in CORE}) == len(CORE)
    assert all(parse(instance.name) == instance for instance in CORE)
    assert {instance.kind for instance in CORE} == set(ELEMENT_BYTES)


def launched(instance: Instance, m: int, n: int, k: int, mode: int = 0, count: int = 1, **options: Any) -> Any:
    """Return the launch for packed matrices in row-major order."""
    leading = (k if instance.op_a == "n" else m, n if instance.op_b == "n" else k, n, n)
    scalar = np.dtype(SCALARS[instance.kind]).type
    numbers = {"alpha": scalar(2).tobytes(), "beta": scalar(3).tobytes(), "relu": False} | options
    return adapter.launch(instance, mode, m, n, k, count, (m * k, k * n, m * n, m * n), leading, **numbers)


def grid_of(instance: Instance, m: int, n: int, depth: int) -> tuple[int, int, int]:
    """GemmIdentityThreadblockSwizzle<8>: up to eight columns of tiles share a column of the grid."""
    rows, columns = ceil(m / instance.tile[0]), ceil(n / instance.tile[1])
    folded = next(width for width, least in ((8, 6), (4, 3), (2, 2), (1, 0)) if columns >= least)
    return rows * folded, ceil(columns / folded), depth


@by_name
def test_launches(instance: Instance) -> None:
    warps = [size // part for size, part in zip(instance.tile, instance.warp, strict=True)]
    size = ELEMENT_BYTES[instance.kind]
    staged = instance.stages * (instance.tile[0] + instance.tile[1]) * instance.tile[2] * size
    lengths = set()
    for m, n, k in SHAPES:
        found = launched(instance, m, n, k)
        assert found.grid == grid_of(instance, m, n, 1)
        assert found.block == 32 * np.prod(warps)
        assert staged <= found.shared_bytes <= MOST_SHARED_BYTES
        assert np.frombuffer(found.params, np.int32, 3).tolist() == [m, n, k]  # UniversalParamsBase::problem_size
        lengths.add(len(found.params))
        for at, value in ((found.alpha, 2), (found.beta, 3)):
            assert np.frombuffer(found.params, SCALARS[instance.kind], 1, at) == value
    assert len(lengths) == 1


@by_name
def test_pointers_and_strides(instance: Instance) -> None:
    """The four pointers do not overlap and are empty; the other bytes depend on the leading dimensions."""
    found = launched(instance, 136, 72, 264)
    pointers = (found.a, found.b, found.c, found.d)
    assert [at % 8 for at in pointers] == [0] * 4
    assert sorted(pointers) == list(range(min(pointers), min(pointers) + 32, 8))  # one after the other
    assert all(found.params[at : at + 8] == bytes(8) for at in pointers)
    fields = [*((at, 8) for at in pointers)]
    scalar_bytes = np.dtype(SCALARS[instance.kind]).itemsize
    fields += [(found.alpha, scalar_bytes), (found.beta, scalar_bytes)]
    fields.sort()
    assert all(at + size <= after for (at, size), (after, _) in pairwise(fields))
    assert fields[-1][0] + fields[-1][1] <= len(found.params)


@by_name
@pytest.mark.parametrize(("k", "slices"), [(264, 3), (8, 5), (4096, 16)])
def test_split_k(instance: Instance, k: int, slices: int) -> None:
    """Slices begin at multiples of 16 bytes, or of 128 if both operands are contiguous along k: there may be fewer."""
    size = ELEMENT_BYTES[instance.kind]
    found = launched(instance, 64, 64, k, mode=1, count=slices).grid
    possible = {ceil(k / (ceil(ceil(k / slices) / unit) * unit)) for unit in (max(1, 16 // size), max(1, 128 // size))}
    assert found[:2] == grid_of(instance, 64, 64, 1)[:2]
    assert found[2] in possible


@by_name
@pytest.mark.parametrize("mode", [2, 3], ids=["strided", "pointers"])
def test_batches(instance: Instance, mode: int) -> None:
    assert launched(instance, 64, 64, 64, mode=mode, count=7).grid == grid_of(instance, 64, 64, 7)


@pytest.mark.parametrize("mode", range(4), ids=["one", "split", "strided", "pointers"])
def test_equal_launches_have_equal_bytes(mode: int) -> None:
    """The bytes do not depend on the stack's contents, as in another thread: a kTask's key is a hash of these bytes."""
    here = [launched(instance, 64, 128, 64, mode=mode, count=2) for instance in CORE]
    with ThreadPoolExecutor(1) as pool:
        there = [pool.submit(launched, instance, 64, 128, 64, mode=mode, count=2).result() for instance in CORE]
    assert here == there


@cache
def code_of(instance: Instance) -> tuple[image.Entry, ...]:
    (named,) = provider.library(instance.name).images
    (code,) = providers.code(named)
    assert code.kind == "fatbin"
    return tuple(image.entries(code.data))


@by_name
def test_code_takes_these_parameters(instance: Instance) -> None:
    """The image has PTX for newer devices, machine code for two architectures, and one kernel.

    The kernel's symbol is the name, its only parameter has the adapter's bytes, and its block is the launch's.
    """
    entries = code_of(instance)
    assert sorted(entry.kind for entry in entries) == [PTX, CUBIN, CUBIN]
    (text,) = (entry.content().split(b"\0")[0].decode() for entry in entries if entry.kind == PTX)
    assert re.findall(r"\.entry\s+([\w$]+)", text) == [instance.name]
    parameters = re.findall(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.b8\s+\w+_param_\d+\[(\d+)\]", text)
    found = launched(instance, 64, 64, 64)
    assert [int(size) for _, size in parameters] == [len(found.params)]
    assert all(int(align) <= 16 for align, _ in parameters)  # the alignment of kaas.Struct
    (most,) = re.findall(r"\.maxntid\s+(\d+)", text)
    assert int(most) == found.block
    assert re.search(r"\.target\s+sm_80", text)


TENSOR = {"h": "f16", "b": "bf16", "t": "tf32", "d": "f64", "z": "f64"}


@by_name
def test_code_uses_its_unit(instance: Instance) -> None:
    """Tensor kernels multiply by mma of their element type, others by fma.

    More than two stages are copied asynchronously, and only kernels with GELU have its code.
    """
    (text,) = (entry.content().split(b"\0")[0].decode() for entry in code_of(instance) if entry.kind == PTX)
    products = set(re.findall(r"\bmma\.sync\.aligned\.m\d+n\d+k\d+\.row\.col\.(\S+);?", text))
    kinds = {kind.split(".")[1] for kind in products}
    assert kinds == ({TENSOR[instance.kind]} if instance.unit == "tensor" else set())
    assert ("cp.async" in text) == (instance.stages > 2)
    assert ("ex2.approx" in text) == instance.gelu  # of the error function
