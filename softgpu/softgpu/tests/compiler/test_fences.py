"""A confined kernel reaches nothing outside of its window, by any instruction; and computes what it computed before."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgpu.codegen import kernel as codegen
from softgpu.examination import examine
from softgpu.instructions import FAMILIES
from softgpu.target import host
from softgpu.tests.compiler.attacks import ATTACKS, BLOCK, CANARY, READS, SHAPES, WRITES, kernel
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.harness import HEADER
from tests.lanes import spread

ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = "700", "716"


def attack(gpu: Gpu, shape: str, body: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array outside of the window after the attack, and what the kernel brought back."""
    outside = np.full(64 << 10, CANARY, np.uint32)
    address = outside.ctypes.data + outside.nbytes // 2 & ~63
    own, out = np.zeros(64, np.uint32), np.zeros(BLOCK, np.uint32)
    table = np.array([address + 8 * lane for lane in range(BLOCK)], np.uint64)
    text = kernel(shape, body)
    said = ILLEGAL_ADDRESS
    try:
        gpu.run(text, "k", 1, BLOCK, np.uint64(address), own, table, out, np.uint32(0))
    except RuntimeError as error:
        said = str(error)
    assert said.startswith((ILLEGAL_ADDRESS, MISALIGNED_ADDRESS))  # a guard, or a place where the window has no memory
    return outside, out


@pytest.mark.parametrize("shape", spread(SHAPES, 3))
@pytest.mark.parametrize("name", WRITES)
def test_no_instruction_writes_outside(fenced_gpu: Gpu, name: str, shape: str) -> None:
    outside, _ = attack(fenced_gpu, shape, WRITES[name])
    assert (outside == CANARY).all()


@pytest.mark.parametrize("shape", spread(SHAPES, 3))
@pytest.mark.parametrize("name", READS)
def test_no_instruction_reads_outside(fenced_gpu: Gpu, name: str, shape: str) -> None:
    _, out = attack(fenced_gpu, shape, READS[name])
    assert not (out == CANARY).any()
    assert not (out == CANARY & 0xFF).any()
    assert not (out == CANARY & 0xFFFF).any()


@pytest.mark.parametrize(("stride", "apart"), [(4, False), (1 << 20, False), (1 << 22, True), (1 << 26, True)])
def test_lanes_that_are_farther_apart_than_the_guards_take_have_a_fence_each(stride: int, apart: bool) -> None:
    """One fence for all lanes bounds the first alone: the others are as far from it as the code says."""
    near = f"mul.wide.u32 %rd3, %r0, {stride}; add.u64 %rd2, %rd0, %rd3;"
    text = kernel("far apart", ATTACKS["ld.global"]).replace(SHAPES["far apart"], near)
    _, kernels = examine(text)
    code = codegen.generate(kernels["k"], (BLOCK, 1, 1), host(), fenced=True).text
    assert bool(re.search(r"and <\d+ x i64>", code)) == apart


@pytest.mark.parametrize("name", ["ld.global", "ld.local", "ld.const", "st.global", "st.local", "atom.exch"])
def test_the_attacks_work_without_a_fence(gpu: Gpu, name: str) -> None:
    """Else the tests above would show nothing."""
    outside, out = attack(gpu, "uniform", ATTACKS[name])
    assert (out == CANARY).any() or not (outside == CANARY).all()


def test_each_instruction_that_touches_memory_is_attacked() -> None:
    tried = {word for text in (*READS.values(), *WRITES.values()) for word in re.findall(r"[a-z_.]+", text)}
    hints = {"prefetch", "prefetchu", "discard", "applypriority"}  # they have no code
    for base, family in FAMILIES.items():
        if "global" in family.modifiers | family.required or "shared" in family.modifiers | family.required:
            if base in hints | {"cvta", "isspacep", "createpolicy"}:
                continue
            assert any(word == base or word.startswith(f"{base}.") for word in tried), base


@pytest.mark.parametrize("offset", [-1, 36 - 3, 1 << 20, -(1 << 20)])
def test_an_access_beyond_the_parameters_is_refused(gpu: Gpu, offset: int) -> None:
    text = kernel("uniform", f"ld.param.u32 %r1, [where+{offset}];")
    with pytest.raises(Exception, match="outside of the parameters"):
        gpu.run(text, "k", 1, 32, np.uint64(0), *(np.zeros(64, np.uint32) for _ in range(3)), np.uint32(0))


# --- printf and assert, which read texts and arguments

TEXTS = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.global .align 1 .b8 text[4] = {37, 115, 10, 0};
.global .align 1 .b8 count[4] = {37, 110, 10, 0};
.visible .entry k(.param .u64 where, .param .u64 how)
{
  .reg .b64 %a, %h, %t, %l, %m; .reg .b32 %r, %q; .reg .pred %p;
  .local .align 8 .b8 arguments[8];
  ld.param.u64 %a, [where]; ld.param.u64 %h, [how];
  mov.u64 %l, arguments; cvta.local.u64 %m, %l; st.local.u64 [%l], %a;
  mov.u64 %t, text; cvta.global.u64 %t, %t;
  BODY
  ret;
}"""
CALL = (
    "{{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], {f}; st.param.b64 [a], {a}; "
    "call.uni (r), vprintf, (f, a); ld.param.b32 %r, [r]; }}"
)
ASSERT = (
    "{ .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s; st.param.b64 [m], %a; "
    "st.param.b64 [f], %a; st.param.b32 [l], 1; st.param.b64 [n], %a; st.param.b64 [s], 1; "
    "call.uni __assertfail, (m, f, l, n, s); }"
)


@pytest.mark.parametrize(
    "body",
    [
        CALL.format(f="%t", a="%m"),
        CALL.format(f="%a", a="%m"),
        CALL.format(f="%t", a="%a"),
        "mov.u64 %t, count; cvta.global.u64 %t, %t; " + CALL.format(f="%t", a="%m"),
        ASSERT,
    ],
    ids=["argument of %s", "format", "arguments", "%n", "assert"],
)
def test_no_text_from_outside_is_printed(fenced_gpu: Gpu, body: str) -> None:
    secret = np.frombuffer(b"secret-of-another\0" * 400, np.uint8).copy()
    before = secret.copy()
    text = HEADER + TEXTS.replace("BODY", body)
    said = ""
    try:
        fenced_gpu.run(text, "k", 1, 32, np.uint64(secret.ctypes.data), np.uint64(0))
    except RuntimeError as error:
        said = str(error)
    assert "secret" not in said + fenced_gpu.printed()
    assert (secret == before).all()


# --- the code itself: each pointer comes from a fence


SAFE = re.compile(r'%(params|w|in\d|out|addresses|mask|rounds|m\d+|".*")$|@')
DEFINED = re.compile(r"(%\"[^\"]*\"|%[\w.]+) = (.*)")
POINTER = re.compile(r"(?:ptr(?: align \d+)?) (%\"[^\"]*\"|%[\w.]+|@\w+)")


def stray_accesses(text: str) -> list[str]:
    """Return the lines of LLVM code that access memory at an address without a fence."""
    made = {match[1]: match[2] for line in text.splitlines() if (match := DEFINED.match(line.strip()))}

    def inside(pointer: str) -> bool:
        if SAFE.match(pointer):
            return True
        how = made[pointer]
        if match := re.match(r"getelementptr i8, ptr (\S+), i64 -?\d+$", how):
            return inside(match[1])
        if match := re.match(r"select i1 \S+, ptr (\S+), ptr (\S+)$", how):
            return inside(match[1]) and inside(match[2])
        if match := re.match(r"inttoptr i64 (\S+) to ptr$", how):
            return fenced(match[1])
        return False

    def fenced(address: str) -> bool:
        how = made.get(address, "")
        if match := re.match(r"add (?:i64|<32 x i64>) (\S+), (?:-?\d+|<i64.*>|splat.*)$", how):
            return fenced(match[1])
        if match := re.match(r"or i64 (\S+), %window$", how):
            return bool(re.match(r"and i64 \S+, %within$", made.get(match[1], "")))
        if match := re.match(r"or <32 x i64> (\S+), (\S+)$", how):
            first = re.match(r"and <32 x i64> \S+, (\S+)$", made.get(match[1], ""))
            return first is not None and splat_of(match[2]) == "%window" and splat_of(first[1]) == "%within"
        if "shufflevector" in how:
            return all(fenced(part) for part in parts_of(address))
        return False

    def splat_of(vector: str) -> str:
        (part,) = parts_of(vector)
        return part

    def parts_of(vector: str) -> list[str]:
        how = made[vector]
        if match := re.match(r"shufflevector <\d+ x i64> (\S+), ", how):
            return parts_of(match[1])
        match = re.match(r"insertelement <\d+ x i64> (\S+), i64 (\S+), i64 \d+$", how)
        assert match, how
        return [*([] if match[1] == "poison" else parts_of(match[1])), match[2]]

    stray = []
    for line in map(str.strip, text.splitlines()):
        what = line.split(" = ", 1)[-1]
        if re.match(r"(load|store|call .*@llvm\.masked)", what):
            pointer = POINTER.findall(what)[-1 if what.startswith("store") else 0]
            if not inside(pointer):
                stray.append(line)
        if (match := re.match(r"store <32 x i64> (\S+), ptr %addresses$", what)) and not fenced(match[1]):
            stray.append(line)
    return stray


@pytest.mark.parametrize("shape", spread(SHAPES, 3))
@pytest.mark.parametrize("name", ATTACKS)
def test_each_pointer_in_the_code_comes_from_a_fence(name: str, shape: str) -> None:
    _, kernels = examine(kernel(shape, ATTACKS[name]))
    code = codegen.generate(kernels["k"], (BLOCK, 1, 1), host(), fenced=True)
    assert not stray_accesses(code.text)
    assert stray_accesses(codegen.generate(kernels["k"], (BLOCK, 1, 1), host()).text)
