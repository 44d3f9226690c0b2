"""Reading PTX: what is found in it, and that what is wrong is refused with its line and never with a crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from softgpu import examination, instructions
from softgpu.module_info import ModuleInfo
from softgpu.ptx import inline
from softgpu.ptx import parser as ptx_parser
from softgpu.ptx.model import Address, Immediate, Instruction, PtxError, Register, Symbol, Unsupported, Vector
from softgpu.tests.compiler.harness import HEADER

KERNELS = Path(__file__).parent / "kernels"


def entry(body: str, parameters: str = "", before: str = "") -> str:
    return f"{HEADER}{before}\n.visible .entry k({parameters}) {{\n{body}\n}}\n"


def examine(text: str) -> ModuleInfo:
    return examination.examine(text)[0]


def only(text: str) -> Instruction:
    body = ptx_parser.parse(text).functions["k"].body
    instruction = body[-1]
    assert isinstance(instruction, Instruction)
    return instruction


def test_operands() -> None:
    declared = ".reg .b32 %r<4>; .reg .f32 %f<4>; .reg .pred %p; .reg .b64 %rd;\n"
    found = only(entry(declared + "@!%p ld.global.v2.f32 {%f1, %f2}, [%rd+-8];"))
    assert (found.opcode, found.guard, found.negated) == ("ld.global.v2.f32", Register("%p"), True)
    assert found.operands == (Vector((Register("%f1"), Register("%f2"))), Address(Register("%rd"), -8))
    found = only(entry(declared + "fma.rn.f32 %f1, %f2, 0f3F800000, 0fBF800000;"))
    assert found.operands[2:] == (Immediate(0x3F800000, 32), Immediate(0xBF800000, 32))
    found = only(entry(declared + "mov.u32 %r1, table+4;", before=".global .u32 table[4];"))
    assert found.operands[1] == Symbol("table", 4)
    assert only(entry(declared + "add.s32 %r1, %r2, -0x10;")).operands[2] == Immediate(-16)
    assert only(entry(declared + "and.b32 %r1, %r2, 4294967295U;")).operands[2] == Immediate(0xFFFFFFFF)


def test_lines_of_the_source() -> None:
    """As nvcc -lineinfo writes them: the files come last, and a function without lines has none of the one before."""
    inlined = ".loc 2 7 1, function_name $L__info_string0, inlined_at 1 20 3\n"
    first, second = (entry(body).removeprefix(HEADER) for body in (f".loc 1 3 0\n{inlined}ret;", "ret;"))
    files = '.file 1 "/home/me/my code/a.cu"\n.file 2 "C:\\\\b.cuh", 1700000000, 5\n.file 3 ""\n'
    text = HEADER + first + second.replace(" k(", " other(") + files
    at = {line: n for n, line in enumerate(text.splitlines(), start=1)}
    other = at[".visible .entry other() {"]
    assert examine(text).sources == ((at[".loc 1 3 0"], "a.cu", 3), (at[inlined.strip()], "b.cuh", 7), (other, "", 0))
    assert examine(entry(".loc 1 3 0\nret;")).sources == ()


def test_parameters_are_laid_out_as_in_cuda() -> None:
    text = ".param .u32 a, .param .u64 b, .param .align 4 .b8 c[6], .param .u8 d, .param .f64 .ptr .global .align 8 e"
    info = examine(entry("ret;", text.replace(".f64 .ptr", ".u64 .ptr")))
    assert info.kernels[0].parameters == ((0, 4), (8, 8), (16, 6), (22, 1), (24, 8))


def test_variables_and_their_initial_bytes() -> None:
    before = """.global .align 4 .u32 a = 7;
.const .f32 b[3] = {1.0, 0f40000000};
.global .u64 c[2] = {generic(a), b+4};
.global .align 16 .b8 d[5] = {1, 2, 0xFF};"""
    info = examine(entry("ret;", before=before))
    at = {variable.name: (variable.offset, variable.size) for variable in info.globals}
    assert [size for _, size in at.values()] == [4, 12, 16, 5]
    memory = bytearray(info.data_bytes)
    for offset, initial in info.data:
        memory[offset : offset + len(initial)] = initial
    data = {name: memory[offset : offset + size] for name, (offset, size) in at.items()}
    assert data["a"] == bytes([7, 0, 0, 0])
    assert data["b"] == bytes.fromhex("0000803f 00000040 00000000")
    assert data["d"] == bytes([1, 2, 255, 0, 0])
    assert info.pointers == ((at["c"][0], at["a"][0]), (at["c"][0] + 8, at["b"][0] + 4))


def test_only_used_shared_memory_counts() -> None:
    before = ".shared .align 4 .b8 one[100];\n.shared .align 16 .b8 two[64];\n.extern .shared .align 16 .b8 rest[];"
    body = ".reg .b32 %r; .shared .align 8 .b8 own[12];\nmov.u32 %r, two; mov.u32 %r, rest; ret;"
    module = ptx_parser.parse(entry(body, before=before))
    kernel = inline.flatten(module, module.functions["k"], {}, [])
    assert kernel.shared == {"own": 0, "two": 16, "rest": 80}
    assert kernel.shared_bytes == 80


def test_scopes_hide_names() -> None:
    body = """.reg .b32 %r;
mov.u32 %r, 1;
{
.reg .b32 %r;
mov.u32 %r, 2;
}
mov.u32 %r, 3;"""
    names = [i.operands[0] for i in ptx_parser.parse(entry(body)).functions["k"].body if isinstance(i, Instruction)]
    assert names[0] == names[2] != names[1]


BAD = {
    "not PTX at all": "hello",
    "an empty text": "",
    "no body": f"{HEADER}.visible .entry k()",
    "an open body": f"{HEADER}.visible .entry k() {{ ret;",
    "an open instruction": entry(".reg .b32 %r; add.s32 %r, %r"),
    "an unknown register": entry("add.s32 %r1, %r1, 1;"),
    "an unknown label": entry("bra nowhere;"),
    "an unknown variable": entry(".reg .b64 %a; mov.u64 %a, nothing;"),
    "too few operands": entry(".reg .b32 %r; add.s32 %r, 1;"),
    "a result that is a number": entry(".reg .b32 %r; add.s32 1, %r, %r;"),
    "a load without an address": entry(".reg .b32 %r; ld.global.u32 %r, 5;"),
    "a bad number": entry(".reg .b32 %r; add.s32 %r, %r, 12x;"),
    "a bad parameter": entry("ret;", ".param .u99 x"),
    "an alignment of 3": entry("ret;", ".param .align 3 .b8 x[4]"),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_malformed_text_is_an_error_with_a_line(text: str) -> None:
    with pytest.raises(PtxError) as caught:
        examine(text)
    assert str(caught.value).startswith("line ")


REFUSED = {
    "tex": ("tex.2d.v4.f32.f32 {%f, %f, %f, %f}, [%a, {%f, %f}];", "tex"),
    "cp.async": ("cp.async.mbarrier.arrive.shared.b64 [%r];", "cp.async.mbarrier"),
    "mma": ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r}, {%r}, {%r}, {%r};", "this form of mma"),
    "a type": ("add.b32 %r, %r, %r;", r"\.b32 of add"),
    "a modifier": ("ld.shared::cluster.u32 %r, [%r];", "shared::cluster of ld"),
    "a special register": ("mov.u32 %r, %cluster_ctaid.x;", "%cluster_ctaid.x"),
    "malloc": ("call.uni (ret), malloc, (p0);", "call of malloc"),
}


@pytest.mark.parametrize(("line", "name"), REFUSED.values(), ids=REFUSED.keys())
def test_an_instruction_without_code_is_refused_by_name_and_line(line: str, name: str) -> None:
    declared = ".reg .b32 %r; .reg .f32 %f; .reg .b64 %a;\n"
    with pytest.raises(Unsupported, match=rf"line 7: .*{name}"):
        examine(entry(declared + line))


def test_one_error_has_all_refusals() -> None:
    body = ".reg .b32 %r;\nmbarrier.init.shared.b64 [%r], 4;\nadd.s32 %r, %r, 1;\nmov.u32 %r, %cluster_ctaid.x;"
    with pytest.raises(Unsupported, match=r"line 7: .*line 9: ") as caught:
        examine(entry(body))
    assert "line 8" not in str(caught.value)


def test_recursion_is_refused_by_name() -> None:
    before = ".func f() { call.uni g, (); ret; }\n.func g() { call.uni f, (); ret; }"
    before = ".func g();\n" + before
    with pytest.raises(Unsupported, match="recursive call of f"):
        examine(entry("call.uni f, ();", before=before))


@pytest.mark.parametrize(
    "name", ["warp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("divergence", "memory"))]
)
def test_damaged_text_never_crashes(name: str) -> None:
    """Cut off anywhere, or with a piece missing: either it still reads, or it is a PtxError."""
    text = (KERNELS / f"{name}.ptx").read_text()
    chance = random.Random(5)
    for _ in range(60):
        start = chance.randrange(len(text))
        length = chance.choice([1, 5, 40, len(text)])
        try:
            examine(text[:start] + text[start + length :])
        except PtxError as error:
            found = error
        else:
            continue
        assert found.line >= 0
        assert found.message


def test_every_family_of_instructions_has_a_summary() -> None:
    rows = instructions.supported()
    assert len(rows) > 60
    assert all(summary for _, _, summary in rows)
