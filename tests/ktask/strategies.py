"""Random kTasks for Hypothesis: shared buffers, InOut, offsets, structs, pointer tables, scalars, several libraries."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import kaas
from kaas.ktask.arguments import Access, Argument
from kaas.ktask.dtypes import DTYPE_BYTES, KIND_BYTES, is_integer_kind

PTX = ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
LIBRARIES = [kaas.Library.from_ptx(PTX + "// " + name) for name in "abc"]
SCALARS = {f"s_{kind}": kind for kind in KIND_BYTES}
"""Kinds by scalar name: each name has one kind, so that no two kernels disagree."""

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))


@st.composite
def buffers(draw: st.DrawFn) -> kaas.Buffer:
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    return kaas.Buffer(draw(names), shape, draw(dtypes), init=draw(st.sampled_from([None, None, "zero"])))


@st.composite
def accesses(draw: st.DrawFn, pool: list[kaas.Buffer]) -> Access:
    buffer = draw(st.sampled_from(pool))
    kind = draw(st.sampled_from([kaas.In, kaas.Out, kaas.InOut]))
    return kind(buffer, draw(st.integers(0, buffer.nbytes - 1) | st.just(0)))


scalars = st.builds(lambda name: kaas.Scalar(name, SCALARS[name]), st.sampled_from(sorted(SCALARS)))


@st.composite
def structs(draw: st.DrawFn, pool: list[kaas.Buffer]) -> kaas.Struct:
    """Draw a struct with fields on every 16th byte at most, which cannot overlap or lie outside."""
    slots = draw(st.integers(1, 6))
    blob = draw(st.binary(min_size=16 * slots, max_size=16 * slots))
    fields = draw(st.lists(st.integers(0, slots - 1), unique=True, max_size=slots))
    half = len(fields) // 2
    target: st.SearchStrategy[Any] = accesses(pool) | tables(pool)
    return kaas.Struct(
        blob,
        pointers={16 * slot: draw(target) for slot in fields[:half]},
        scalars={16 * slot: draw(scalars) for slot in fields[half:]},
        align=draw(st.sampled_from([1, 8, 16, 64])),
    )


def tables(pool: list[kaas.Buffer]) -> st.SearchStrategy[kaas.Pointers]:
    return st.builds(kaas.Pointers, st.lists(accesses(pool), min_size=1, max_size=3))


literals = st.one_of(
    st.builds(kaas.i8, st.integers(-128, 127)),
    st.builds(kaas.u64, st.integers(0, 2**64 - 1)),
    st.builds(kaas.f16, st.floats(width=16)),
    st.builds(kaas.bf16, st.floats(-1e30, 1e30)),
    st.builds(kaas.f64, st.floats()),
    st.builds(kaas.c128, st.complex_numbers()),
    st.builds(kaas.boolean, st.booleans()),
    st.just(kaas.Null),
)


def arguments(pool: list[kaas.Buffer]) -> st.SearchStrategy[Argument]:
    return st.one_of(accesses(pool), accesses(pool), literals, scalars, tables(pool), structs(pool))


extents = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@st.composite
def kernels(draw: st.DrawFn, pool: list[kaas.Buffer]) -> kaas.Kernel:
    return kaas.Kernel(
        draw(st.sampled_from(LIBRARIES)),
        draw(names),
        draw(extents),
        draw(extents),
        draw(st.lists(arguments(pool), max_size=5)),
        draw(st.sampled_from([0, 0, 1024])),
    )


@st.composite
def ktasks(draw: st.DrawFn) -> kaas.KTask:
    pool = draw(st.lists(buffers(), min_size=1, max_size=6, unique_by=lambda buffer: buffer.name))
    listed = draw(st.lists(kernels(pool), max_size=6))
    listed.append(kaas.Kernel(LIBRARIES[0], "last", 1, 32, [kaas.Out(pool[0])]))  # at least one buffer is written
    written = list(dict.fromkeys(buffer for kernel in listed for buffer in kernel.writes))
    outputs = draw(st.lists(st.sampled_from(written), min_size=1, unique=True))
    counts = [kaas.Scalar(name, kind) for name, kind in SCALARS.items() if is_integer_kind(kind)]
    iterations = draw(st.integers(1, 5) | st.sampled_from(counts))
    return kaas.KTask(listed, outputs, iterations, draw(st.none() | names))
