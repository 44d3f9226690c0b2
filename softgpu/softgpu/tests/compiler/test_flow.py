"""Random programs, with any control flow, against an interpreter that runs each thread by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softgpu.analysis.blocks import bits
from softgpu.tests.compiler.harness import HEADER

REGISTERS = 5
MASK = 0xFFFFFFFF
OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
}


@dataclass(frozen=True)
class Op:
    """registers[target] = registers[a] <name> registers[b] (or the number b), where registers[guard] is odd."""

    name: str
    target: int
    a: int
    b: int
    immediate: bool
    guard: int | None


@dataclass(frozen=True)
class End:
    """Goes to `taken` where registers[a] <test> registers[b] (or b), else to `otherwise`; beyond the end: returns."""

    test: str
    a: int
    b: int
    immediate: bool
    taken: int
    otherwise: int


@dataclass(frozen=True)
class Node:
    ops: tuple[Op, ...]
    end: End


TESTS = {"lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "ge": lambda a, b: a >= b, "ne": lambda a, b: a != b}


@st.composite
def programs(draw: st.DrawFn) -> tuple[Node, ...]:
    count = draw(st.integers(2, 9))
    register = st.integers(0, REGISTERS - 1)
    number = st.sampled_from([0, 1, 2, 3, 5, 7, 16, 31, 100])

    def op() -> Op:
        immediate = draw(st.booleans())
        return Op(
            draw(st.sampled_from(sorted(OPERATIONS))),
            draw(register),
            draw(register),
            draw(number if immediate else register),
            immediate,
            draw(st.none() | register) if draw(st.integers(0, 3)) == 0 else None,
        )

    def end() -> End:
        immediate = draw(st.booleans())
        target = st.integers(0, count)
        return End(
            draw(st.sampled_from(sorted(TESTS))),
            draw(register),
            draw(number if immediate else register),
            immediate,
            draw(target),
            draw(target),
        )

    return tuple(Node(tuple(op() for _ in range(draw(st.integers(0, 3)))), end()) for _ in range(count))


FUEL = 40


def start(thread: int, lane: int, block: int) -> list[int]:
    """Return the registers' initial values: the thread, the lane, the block and two numbers."""
    return [thread, lane, block, 3, 0]


def interpret(program: tuple[Node, ...], registers: list[int]) -> list[int]:
    at, fuel = 0, FUEL
    while at < len(program):
        fuel -= 1
        if fuel <= 0:
            break
        node = program[at]
        for op in node.ops:
            if op.guard is not None and not registers[op.guard] & 1:
                continue
            second = op.b if op.immediate else registers[op.b]
            registers[op.target] = OPERATIONS[op.name](registers[op.a], second) & MASK
        end = node.end
        second = end.b if end.immediate else registers[end.b]
        at = end.taken if TESTS[end.test](registers[end.a], second) else end.otherwise
    return [*registers, fuel & MASK]


def ptx(program: tuple[Node, ...]) -> str:
    lines = [".visible .entry k(.param .u64 out)", "{", ".reg .b32 %r<5>;", ".reg .b32 %t, %n, %x, %fuel, %s;"]
    lines += [".reg .pred %p, %q;", ".reg .b64 %a, %o;", "mov.u32 %r0, %tid.x;", "mov.u32 %r1, %laneid;"]
    lines += ["mov.u32 %r2, %ctaid.x;", "mov.u32 %r3, 3;", "mov.u32 %r4, 0;", f"mov.u32 %fuel, {FUEL};"]
    for number, node in enumerate(program):
        lines += [f"L{number}:", "sub.s32 %fuel, %fuel, 1;", "setp.le.s32 %p, %fuel, 0;"]
        lines += [f"@%p bra L{len(program)};"]
        for op in node.ops:
            guard = ""
            if op.guard is not None:
                lines += [f"and.b32 %x, %r{op.guard}, 1;", "setp.eq.u32 %q, %x, 1;"]
                guard = "@%q "
            kind = "b32" if op.name in ("and", "xor") else "u32"
            lines.append(f"{guard}{op.name}.{kind} %r{op.target}, %r{op.a}, {'' if op.immediate else '%r'}{op.b};")
        end = node.end
        lines.append(f"setp.{end.test}.u32 %p, %r{end.a}, {'' if end.immediate else '%r'}{end.b};")
        lines += [f"@%p bra L{end.taken};", f"bra.uni L{end.otherwise};"]
    lines += [f"L{len(program)}:", "mov.u32 %t, %tid.x;", "mov.u32 %n, %ntid.x;", "mov.u32 %x, %ctaid.x;"]
    lines += ["mad.lo.u32 %t, %x, %n, %t;", "ld.param.u64 %a, [out];", "mad.wide.u32 %a, %t, 24, %a;"]
    lines += [f"st.global.u32 [%a+{4 * i}], %r{i};" for i in range(REGISTERS)]
    return HEADER + "\n".join([*lines, "st.global.u32 [%a+20], %fuel;", "ret;", "}"])


def check(gpu: Any, program: tuple[Node, ...], block: int) -> None:
    out = np.zeros((2 * block, REGISTERS + 1), np.uint32)
    gpu.run(ptx(program), "k", 2, block, out)
    for thread in range(2 * block):
        index = thread % block
        expected = interpret(program, start(index, index % 32, thread // block))
        assert out[thread].tolist() == expected, thread


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(program=programs(), block=st.sampled_from([32, 20, 48]))
def test_random_programs(gpu: Any, program: tuple[Node, ...], block: int) -> None:
    check(gpu, program, block)


def jump(taken: int, otherwise: int, a: int = 1, b: int = 16, test: str = "lt") -> End:
    return End(test, a, b, True, taken, otherwise)


def bump(register: int, by: int) -> Op:
    return Op("add", register, register, by, True, None)


IRREDUCIBLE = (
    Node((), jump(1, 2)),
    Node((bump(4, 5), bump(1, 1)), jump(2, 3, a=4, b=40)),
    Node((bump(4, 1), bump(1, 3)), jump(1, 3, a=1, b=30)),
    Node((bump(3, 2),), jump(9, 4, a=3, b=31)),
)
LOOP_LEFT_AT_DIFFERENT_TIMES = (
    Node((bump(4, 1),), jump(0, 1, a=4, b=7)),
    Node((Op("add", 4, 4, 1, False, None),), jump(1, 2, a=4, b=31)),
    Node((Op("xor", 3, 4, 2, False, None),), jump(5, 5)),
)


@pytest.mark.parametrize("program", [IRREDUCIBLE, LOOP_LEFT_AT_DIFFERENT_TIMES], ids=["irreducible", "loop"])
def test_chosen_programs(gpu: Any, program: tuple[Node, ...]) -> None:
    fitted = tuple(
        Node(
            n.ops,
            End(n.end.test, n.end.a, n.end.b, True, min(n.end.taken, len(program)), min(n.end.otherwise, len(program))),
        )
        for n in program
    )
    check(gpu, fitted, 32)


def test_bits() -> None:
    assert list(bits(0b101001)) == [0, 3, 5]


MEET_AGAIN = """.visible .entry k(.param .u64 out) {
.reg .b32 %t, %n, %m; .reg .b64 %a; .reg .pred %p, %q;
mov.u32 %t, %tid.x; ld.param.u64 %a, [out]; mad.wide.u32 %a, %t, 4, %a;
and.b32 %m, %t, 1; setp.ne.u32 %p, %m, 0; and.b32 %n, %t, 7;
@%p bra second;
first:
sub.s32 %n, %n, 1; setp.le.s32 %q, %n, 0;
@%q bra done;
second:
sub.s32 %n, %n, 2; setp.gt.s32 %q, %n, 0;
@%q bra first;
done:
vote.sync.ballot.b32 %m, %p, -1;
st.global.u32 [%a], %m;
ret;
}
"""


def test_threads_that_leave_a_loop_with_two_entries_meet_behind_the_loop(gpu: Any) -> None:
    out = np.zeros(32, np.uint32)
    gpu.run(HEADER + MEET_AGAIN, "k", 1, 32, out)
    assert set(out.tolist()) == {0xAAAAAAAA}


@pytest.mark.parametrize("index", ["%tid.x", "%ctaid.x"])
def test_a_jump_table_of_one_target(gpu: Any, index: str) -> None:
    out = np.zeros(32, np.uint32)
    body = f"""{{ .reg .b32 %t; .reg .b64 %a; mov.u32 %t, {index}; rem.u32 %t, %t, 1;
there: .branchtargets here; brx.idx %t, there; here: mov.u32 %t, %tid.x; ld.param.u64 %a, [out];
mad.wide.u32 %a, %t, 4, %a; st.global.u32 [%a], 5; ret; }}"""
    gpu.run(f"{HEADER}.visible .entry k(.param .u64 out) {body}", "k", 1, 32, out)
    assert set(out.tolist()) == {5}


SCOPED = """.visible .entry k(.param .u64 out) {
.reg .b32 %t, %n; .reg .b64 %a; .reg .pred %p;
mov.u32 %t, %tid.x; ld.param.u64 %a, [out]; mad.wide.u32 %a, %t, 4, %a; mov.u32 %n, 0;
{ .reg .pred %q; WAIT: add.u32 %n, %n, 1; setp.ge.u32 %q, %n, %t; @%q bra DONE; bra WAIT; DONE: }
{ .reg .pred %q; WAIT: add.u32 %n, %n, 10; setp.ge.u32 %q, %n, 40; @%q bra DONE; bra WAIT; DONE: }
{ { bra DONE; add.u32 %n, %n, 1000; DONE: } bra.uni DONE; add.u32 %n, %n, 1000; DONE: }
DONE: st.global.u32 [%a], %n; ret;
}
"""


def test_labels_belong_to_their_scope(gpu: Any) -> None:
    out = np.zeros(32, np.uint32)
    gpu.run(HEADER + SCOPED, "k", 1, 32, out)
    first = np.maximum(np.arange(32), 1)
    assert out.tolist() == (first + np.maximum(-(-(40 - first) // 10), 1) * 10).tolist()
