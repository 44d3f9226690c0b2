"""Calls through pointers, memory from a thread's stack, and which space an address is in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.c_interface import CompileError
from softgpu.tests.compiler.harness import HEADER, Case, run

POINTERS = (Path(__file__).parent / "kernels" / "pointers.ptx").read_text()
ACTIONS: list[Callable[[Any, Any], Any]] = [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b]


def pointers_to(gpu: Any) -> Any:
    """The addresses of plus, minus and times, as a kernel gives them to the host."""
    out = np.zeros(3, np.uint64)
    gpu.run(POINTERS, "find", 1, 1, out)
    return out


@pytest.mark.parametrize("choice", ["same", "different"])
def test_tables_of_functions(gpu: Any, choice: str) -> None:
    chance = np.random.default_rng(1)
    choices = np.full(128, 2, np.int32) if choice == "same" else chance.integers(0, 3, 128).astype(np.int32)
    a, b = chance.integers(-50, 50, (2, 128)).astype(np.int32)
    first = np.array([ACTIONS[c](x, y) for c, x, y in zip(choices, a, b, strict=True)])
    others = [ACTIONS[(c + 2) % 3] for c in choices]
    second = np.array([f(f(x, y), y) for f, x, y in zip(others, first, b, strict=True)])
    gpu.run(POINTERS, "tables", 2, 64, choices, a, b)
    np.testing.assert_array_equal(a, first)
    np.testing.assert_array_equal(b, second)


def test_a_pointer_that_the_host_passes_on(gpu: Any) -> None:
    for pointer, action in zip(pointers_to(gpu), ACTIONS, strict=True):
        a = np.arange(32, dtype=np.int32)
        gpu.run(POINTERS, "through", 1, 32, pointer, a)
        np.testing.assert_array_equal(a, action(np.arange(32), 3))


@pytest.mark.parametrize("pointer", [0, 64, 1 << 40, (0x5F << 56) + (1 << 20)])
def test_a_pointer_to_no_function_ends_the_launch(gpu: Any, pointer: int) -> None:
    with pytest.raises(RuntimeError, match=rf"718: the call at PTX line \d+ is of {pointer:#x}".replace("0x0", "0")):
        gpu.run(POINTERS, "through", 1, 32, np.uint64(pointer), np.zeros(32, np.int32))


def test_recursion_through_a_pointer_ends_the_launch(gpu: Any) -> None:
    a = np.zeros(32, np.int32)
    gpu.run(POINTERS, "recursive", 1, 32, a)
    assert (a == 1).all()
    with pytest.raises(RuntimeError, match=r"718: .*recursion"):
        gpu.run(POINTERS, "recursive", 1, 32, np.arange(32, dtype=np.int32))


def test_virtual_functions(gpu: Any) -> None:
    memory = np.zeros(32 * 96, np.uint8)
    areas, corners = np.zeros(96, np.float32), np.zeros(96, np.int32)
    gpu.run(POINTERS, "objects", 1, 96, memory, areas, corners)
    other = 95 - np.arange(96)
    np.testing.assert_array_equal(areas, np.where(other % 3, 2, 6) * other.astype(np.float32) ** 2)
    np.testing.assert_array_equal(corners, np.where(other % 3, 4, 0))


def test_structs_through_pointers(gpu: Any) -> None:
    m = np.arange(128, dtype=np.float32).reshape(32, 4)
    expected = m * 2
    expected[::2] = m[::2][:, [0, 2, 1, 3]]
    gpu.run(POINTERS, "structs", 1, 32, m)
    np.testing.assert_array_equal(m, expected)


def test_a_list_of_targets(gpu: Any) -> None:
    """As PTX has it besides prototypes; a function of the same kind that is not on it cannot be reached."""
    text = f"""{HEADER}
.func (.reg .u32 r) one(.reg .u32 a) {{ add.u32 r, a, 1; ret; }}
.func (.reg .u32 r) two(.reg .u32 a) {{ add.u32 r, a, 2; ret; }}
.func (.reg .u32 r) three(.reg .u32 a) {{ add.u32 r, a, 3; ret; }}
.global .u64 all[3] = {{one, two, three}};
.visible .entry k(.param .u32 which, .param .u64 out) {{
.reg .u64 %p, %f; .reg .u32 %r; .reg .pred %yes;
ld.param.u32 %r, [which];
mul.wide.u32 %p, %r, 8;
mov.u64 %f, all;
add.u64 %p, %p, %f;
ld.global.u64 %f, [%p];
setp.lt.u32 %yes, %r, 3;
targets: .calltargets one, two;
@%yes call (%r), %f, (%r), targets;
ld.param.u64 %p, [out];
st.global.u32 [%p], %r;
ret;
}}"""
    for which in (0, 1):
        out = np.zeros(1, np.uint32)
        gpu.run(text, "k", 1, 32, np.uint32(which), out)
        assert out[0] == 2 * which + 1
    with pytest.raises(RuntimeError, match=r"718: .*of another kind"):
        gpu.run(text, "k", 1, 32, np.uint32(2), np.zeros(1, np.uint32))


def test_memory_from_the_stack(gpu: Any) -> None:
    given, out = np.random.default_rng(2).integers(-9, 9, 64).astype(np.int32), np.zeros(64, np.int32)
    gpu.run(POINTERS, "stack", 1, 64, given, np.int32(40), out)
    twice = 2 * (given[:40][::-1] * np.arange(1, 41)).sum()
    np.testing.assert_array_equal(out, twice - np.cumsum(given))


def test_more_than_the_stack_has_ends_the_launch(gpu: Any) -> None:
    given = np.zeros(1 << 20, np.int32)
    with pytest.raises(RuntimeError, match=r"714: alloca at PTX line \d+ takes more than the stack has"):
        gpu.run(POINTERS, "stack", 1, 64, given, np.int32(1 << 18), np.zeros(64, np.int32))


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_the_stack_by_hand(gpu: Any, uniform: bool) -> None:
    """Stack memory that is saved and restored is taken again."""
    line = """.reg .b64 %s, %y, %z;
stacksave.u64 %s; alloca.u64 %y, {a}, 64; stackrestore.u64 %s; alloca.u64 %z, {a}, 64;
sub.u64 {d}, %y, %z; and.b64 %y, %y, 63; or.b64 {d}, {d}, %y;"""
    sizes = np.arange(64, dtype=np.uint64) * 8
    assert not run(gpu, Case(line, "u64", ("u64",)), [sizes], uniform).any()


def test_spaces(gpu: Any) -> None:
    out = np.zeros(192, np.int32)
    gpu.run(POINTERS, "spaces", 1, 32, bytes(64), out)
    assert out.reshape(6, 32).T.tolist() == [[1, 2, 4, 8, 17, 1]] * 32


def test_managed_memory_is_a_variable(gpu: Any) -> None:
    out = np.zeros(32, np.int32)
    gpu.run(POINTERS, "shares", 1, 32, out)
    assert sorted(out) == sorted([*range(7, 39, 2), *range(8, 40, 2)])
    assert gpu.read_global(POINTERS, "managed", np.int32, 2).tolist() == [39, 40]


def test_an_alias_is_its_function(gpu: Any) -> None:
    """By name, and with the same address."""
    text = f"""{HEADER}
.func (.reg .u32 r) other(.reg .u32 a);
.func (.reg .u32 r) one(.reg .u32 a) {{ add.u32 r, a, 40; ret; }}
.alias other, one;
.visible .entry k(.param .u64 out) {{
.reg .u64 %p, %x, %y; .reg .u32 %r, %s;
call (%r), other, (2);
mov.u64 %x, one; mov.u64 %y, other;
sub.u64 %x, %x, %y; cvt.u32.u64 %s, %x;
ld.param.u64 %p, [out];
st.global.v2.u32 [%p], {{%r, %s}};
ret;
}}"""
    out = np.ones(2, np.uint32)
    gpu.run(text, "k", 1, 1, out)
    assert out.tolist() == [42, 0]
    with pytest.raises(CompileError, match="line 7: other is to stand for two, which has no body here"):
        gpu.load(text.replace(".alias other, one", ".alias other, two"))
