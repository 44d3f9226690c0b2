"""Roles of buffers, edges between kernels, and every way in which a kTask can be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

import kaas
from kaas.errors import DuplicateBuffer, InvalidGraph, OutputNotWritten, ScalarConflict, StructFieldOutside
from tests.ktask.strategies import PTX, ktasks

LIBRARY = kaas.Library.from_ptx(PTX)
A, B, C, D = (kaas.Buffer(name, 8, "float32") for name in "ABCD")
ZERO = kaas.Buffer("zero", 8, "float32", init="zero")


def kernel(*args: Any, symbol: str = "k") -> kaas.Kernel:
    return kaas.Kernel(LIBRARY, symbol, 1, 32, args)


def names(buffers: tuple[kaas.Buffer, ...]) -> str:
    return " ".join(buffer.name for buffer in buffers)


@pytest.mark.parametrize(
    ("kernels", "outputs", "inputs", "temporaries", "private"),
    [
        ([kernel(kaas.In(A), kaas.Out(B))], [B], "A", "", ""),
        ([kernel(kaas.In(A), kaas.Out(B)), kernel(kaas.In(B), kaas.Out(C))], [C], "A", "B", ""),
        ([kernel(kaas.InOut(A))], [A], "A", "", "A"),
        ([kernel(kaas.In(A), kaas.Out(B)), kernel(kaas.Out(A))], [B], "A", "", "A"),
        ([kernel(kaas.Out(A)), kernel(kaas.In(A), kaas.Out(B))], [B, A], "", "", ""),
        ([kernel(kaas.InOut(ZERO), kaas.In(A))], [ZERO], "A", "", ""),
        ([kernel(kaas.In(ZERO), kaas.Out(B))], [B], "", "zero", ""),
        ([kernel(kaas.In(A), kaas.Out(A))], [A], "A", "", "A"),
        ([kernel(kaas.Out(B), kaas.In(C), kaas.In(A))], [B], "C A", "", ""),
        ([kernel(kaas.Pointers([kaas.In(A), kaas.Out(B)]))], [B], "A", "", ""),
        ([kernel(kaas.Struct(bytes(16), {0: kaas.In(A), 8: kaas.Out(B)}))], [B], "A", "", ""),
    ],
)
def test_roles(
    kernels: list[kaas.Kernel], outputs: list[kaas.Buffer], inputs: str, temporaries: str, private: str
) -> None:
    task = kaas.KTask(kernels, outputs)
    assert (names(task.inputs), names(task.temporaries), names(task.private_inputs)) == (inputs, temporaries, private)
    assert task.outputs == tuple(outputs)


def test_outputs_by_name_or_buffer_in_declared_order() -> None:
    task = kaas.KTask([kernel(kaas.Out(A), kaas.Out(B))], ["B", A])
    assert task.outputs == (B, A)
    assert kaas.KTask([kernel(kaas.Out(A))], "A").outputs == (A,)


@pytest.mark.parametrize(
    ("kernels", "edges"),
    [
        pytest.param([kernel(kaas.Out(A)), kernel(kaas.In(A), kaas.Out(B))], [(0, 1)], id="read after write"),
        pytest.param([kernel(kaas.In(A), kaas.Out(B)), kernel(kaas.Out(A))], [(0, 1)], id="write after read"),
        pytest.param([kernel(kaas.Out(A)), kernel(kaas.Out(A))], [(0, 1)], id="write after write"),
        pytest.param([kernel(kaas.In(A), kaas.Out(B)), kernel(kaas.In(A), kaas.Out(C))], [], id="two readers"),
        pytest.param([kernel(kaas.Out(A)), kernel(kaas.Out(B)), kernel(kaas.In(A), kaas.In(B), kaas.Out(C))],
                     [(0, 2), (1, 2)], id="join"),
        pytest.param([kernel(kaas.Out(A)), kernel(kaas.In(A), kaas.Out(B)), kernel(kaas.In(A), kaas.Out(C)),
                      kernel(kaas.Out(A))], [(0, 1), (0, 2), (1, 3), (2, 3)], id="diamond closed by a writer"),
        pytest.param([kernel(kaas.InOut(A)), kernel(kaas.InOut(A)), kernel(kaas.InOut(A))], [(0, 1), (1, 2)],
                     id="a chain in place has no edge from first to last"),
    ],
)  # fmt: skip
def test_edges(kernels: list[kaas.Kernel], edges: list[tuple[int, int]]) -> None:
    written = [buffer for kernel in kernels for buffer in kernel.writes]
    assert kaas.KTask(kernels, dict.fromkeys(written)).edges == tuple(edges)


def closure(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """Return all pairs that a path joins."""
    closed = set(pairs)
    for middle in range(count):
        into = [a for a, b in closed if b == middle]
        out = [b for a, b in closed if a == middle]
        closed |= {(a, b) for a in into for b in out}
    return closed


@pytest.mark.slow
@given(task=ktasks())
def test_edges_order_exactly_the_kernels_that_conflict(task: kaas.KTask) -> None:
    kernels = task.kernels
    conflicts = {
        (earlier, later)
        for later in range(len(kernels))
        for earlier in range(later)
        if set(kernels[earlier].writes) & {*kernels[later].reads, *kernels[later].writes}
        or set(kernels[earlier].reads) & set(kernels[later].writes)
    }
    assert set(task.edges) <= conflicts
    assert closure(set(task.edges), len(kernels)) == closure(conflicts, len(kernels))


@given(task=ktasks())
def test_every_buffer_has_its_roles(task: kaas.KTask) -> None:
    assert not set(task.inputs) & set(task.temporaries)
    assert not set(task.outputs) & set(task.temporaries)
    assert {*task.inputs, *task.outputs, *task.temporaries} == set(task.buffers)
    assert all(buffer.init is None for buffer in task.inputs)
    assert set(task.private_inputs) <= set(task.inputs)


WRONG: dict[str, tuple[Callable[[], object], type[InvalidGraph], dict[str, Any]]] = {
    "no kernels": (lambda: kaas.KTask([], [A]), InvalidGraph, {"task": "?"}),
    "no kernels, named": (lambda: kaas.KTask([], [A], name="t"), InvalidGraph, {"task": "t"}),
    "not a kernel": (lambda: kaas.KTask(["k"], [A]), InvalidGraph, {"task": "?"}),  # type: ignore[list-item]
    "no outputs": (lambda: kaas.KTask([kernel(kaas.Out(A))], []), InvalidGraph, {"task": "k"}),
    "output twice": (lambda: kaas.KTask([kernel(kaas.Out(A))], [A, "A"]), InvalidGraph, {"task": "k", "buffer": "A"}),
    "output not written": (
        lambda: kaas.KTask([kernel(kaas.In(A), kaas.Out(B))], [A]), OutputNotWritten, {"task": "k", "buffer": "A"}),
    "output unknown": (
        lambda: kaas.KTask([kernel(kaas.Out(B))], ["nothing"]), OutputNotWritten, {"task": "k", "buffer": "nothing"}),
    "two buffers of one name": (
        lambda: kaas.KTask([kernel(kaas.In(A), kaas.Out(kaas.Buffer("A", 9, "float32")))], ["A"]),
        DuplicateBuffer, {"buffer": "A"}),
    "output of another shape": (
        lambda: kaas.KTask([kernel(kaas.Out(A))], [kaas.Buffer("A", 9, "float32")]),
        DuplicateBuffer, {"task": "k", "buffer": "A"}),
    "zero iterations": (lambda: kaas.KTask([kernel(kaas.Out(A))], [A], 0), InvalidGraph, {"task": "k"}),
    "negative iterations": (lambda: kaas.KTask([kernel(kaas.Out(A))], [A], -1), InvalidGraph, {"task": "k"}),
    "iterations of a float": (
        lambda: kaas.KTask([kernel(kaas.Out(A))], [A], kaas.Scalar("n", "f32")), InvalidGraph, {"task": "k"}),
    "a scalar of two kinds": (
        lambda: kaas.KTask([kernel(kaas.Out(A), kaas.Scalar("s", "i32"), kaas.Scalar("s", "f32"))], [A]),
        ScalarConflict, {"scalar": "s", "kinds": ("i32", "f32")}),
    "no symbol": (lambda: kernel(symbol=""), InvalidGraph, {}),
    "no library": (lambda: kaas.Kernel("lib", "k", 1, 1, []), InvalidGraph, {"kernel": "k"}),  # type: ignore[arg-type]
    "a bare value": (lambda: kernel(3), InvalidGraph, {"kernel": "k"}),
    "a bare buffer": (lambda: kernel(A), InvalidGraph, {"kernel": "k"}),
    "grid of zero": (lambda: kaas.Kernel(LIBRARY, "k", 0, 1, []), InvalidGraph, {"kernel": "k"}),
    "grid of four": (lambda: kaas.Kernel(LIBRARY, "k", (1, 1, 1, 1), 1, []), InvalidGraph, {"kernel": "k"}),
    "block of a half": (lambda: kaas.Kernel(LIBRARY, "k", 1, 0.5, []), InvalidGraph, {"kernel": "k"}),  # type: ignore[arg-type]
    "shared memory below zero": (lambda: kaas.Kernel(LIBRARY, "k", 1, 1, [], -1), InvalidGraph, {"kernel": "k"}),
    "buffer without a name": (lambda: kaas.Buffer("", 1), InvalidGraph, {}),
    "negative shape": (lambda: kaas.Buffer("A", (2, -1)), InvalidGraph, {"buffer": "A"}),
    "shape of floats": (lambda: kaas.Buffer("A", (2.0,)), InvalidGraph, {"buffer": "A"}),  # type: ignore[arg-type]
    "unknown dtype": (lambda: kaas.Buffer("A", 1, "float7"), InvalidGraph, {"buffer": "A"}),
    "no dtype": (lambda: kaas.Buffer("A", 1, None), InvalidGraph, {"buffer": "A"}),
    "big-endian dtype": (lambda: kaas.Buffer("A", 1, ">f4"), InvalidGraph, {"buffer": "A"}),
    "unknown init": (lambda: kaas.Buffer("A", 1, init="ones"), InvalidGraph, {"buffer": "A"}),
    "access to no buffer": (lambda: kaas.In("A"), InvalidGraph, {}),  # type: ignore[arg-type]
    "offset at the end": (lambda: kaas.In(A, 32), InvalidGraph, {"buffer": "A"}),
    "offset before the start": (lambda: kaas.Out(A, -4), InvalidGraph, {"buffer": "A"}),
    "scalar without a name": (lambda: kaas.Scalar("", "i32"), InvalidGraph, {}),
    "scalar of no kind": (lambda: kaas.Scalar("s", "i31"), InvalidGraph, {}),
    "empty pointer table": (lambda: kaas.Pointers([]), InvalidGraph, {}),
    "pointer table of numbers": (lambda: kaas.Pointers([1]), InvalidGraph, {}),  # type: ignore[list-item]
    "empty struct": (lambda: kaas.Struct(b""), InvalidGraph, {}),
    "alignment of three": (lambda: kaas.Struct(bytes(8), align=3), InvalidGraph, {}),
    "scalar as a pointer field": (lambda: kaas.Struct(bytes(8), {0: kaas.i64(0)}), InvalidGraph, {}),  # type: ignore[dict-item]
    "literal as a scalar field": (lambda: kaas.Struct(bytes(8), scalars={0: kaas.i32(0)}), InvalidGraph, {}),  # type: ignore[dict-item]
    "pointer field past the end": (
        lambda: kaas.Struct(bytes(16), {9: kaas.In(A)}),
        StructFieldOutside, {"offset_bytes": 9, "field_bytes": 8, "struct_bytes": 16}),
    "pointer field before the start": (
        lambda: kaas.Struct(bytes(16), {-8: kaas.In(A)}),
        StructFieldOutside, {"offset_bytes": -8, "field_bytes": 8, "struct_bytes": 16}),
    "overlapping fields": (
        lambda: kaas.Struct(bytes(16), {0: kaas.In(A)}, {4: kaas.Scalar("s", "f32")}),
        StructFieldOutside, {"offset_bytes": 4, "field_bytes": 4, "struct_bytes": 16}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "meant"), [("float32", "f32"), ("uint64", "u64"), ("bool", "boolean")])
def test_a_type_of_numpy_is_answered_with_the_kind_that_is_meant(given: str, meant: str) -> None:
    with pytest.raises(InvalidGraph, match=f"'s': no kind '{given}'; did you mean '{meant}'"):
        kaas.Scalar("s", given)


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_graph_is_refused_with_its_fields(case: str) -> None:
    make, kind, fields = WRONG[case]
    with pytest.raises(InvalidGraph) as caught:
        make()
    assert type(caught.value) is kind
    assert {name: caught.value.fields[name] for name in fields} == fields
    assert len(caught.value.message) > 10


def test_values_cannot_be_changed() -> None:
    task = kaas.KTask([kernel(kaas.Out(A))], [A])
    for value, attribute in [(task, "name"), (task.kernels[0], "grid"), (A, "shape"), (kaas.In(A), "offset_bytes")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, attribute, None)


def test_struct_zeroes_its_patched_fields() -> None:
    struct = kaas.Struct(b"\xff" * 24, {8: kaas.In(A)}, {0: kaas.Scalar("s", "u16")})
    assert struct.blob == bytes(2) + b"\xff" * 6 + bytes(8) + b"\xff" * 8


def test_library_of_a_task_is_listed_once() -> None:
    other = kaas.Library.from_ptx(PTX + "//")
    kernels = [kaas.Kernel(library, "k", 1, 1, [kaas.InOut(A)]) for library in (LIBRARY, other, LIBRARY)]
    assert kaas.KTask(kernels, [A]).libraries == (LIBRARY, other)


def test_label_is_the_name_or_the_symbol_with_the_hash() -> None:
    task = kaas.KTask([kernel(kaas.Out(D))], [D])
    assert task.label == f"k-{task.key[:8]}"
    assert kaas.KTask([kernel(kaas.Out(D))], [D], name="n").label == "n"
