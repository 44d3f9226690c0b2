"""Bad programs are refused by type when they are loaded or compiled: no crash, no bomb, no hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu import refused
from softgpu.c_interface import INVALID_PTX, CompileError
from softgpu.ptx import limits
from softgpu.tests.compiler.harness import HEADER


def entry(body: str, before: str = "", parameters: str = "") -> str:
    return f"{HEADER}{before}\n.visible .entry k({parameters}) {{\n{body}\nret;\n}}\n"


def tree(levels: int) -> str:
    """Functions that each call the next one twice."""
    leaf = ".func f0() { ret; }\n"
    return leaf + "".join(f".func f{n}() {{ call f{n - 1}, (); call f{n - 1}, (); ret; }}\n" for n in range(1, levels))


def chain(depth: int) -> str:
    return ".func f0() { ret; }\n" + "".join(f".func f{n}() {{ call f{n - 1}, (); ret; }}\n" for n in range(1, depth))


TOO_LARGE = {
    "registers": (entry(".reg .b32 %r<2000000000>;"), "registers"),
    "registers of calls": (
        entry("call f20, ();", tree(21).replace("{ call", "{ .reg .b32 %r<9000>; call")),
        "registers",
    ),
    "a tree of calls": (entry("call f40, ();", tree(41)), "instructions once calls are expanded"),
    "a chain of calls": (entry("call f300, ();", chain(301)), "deep"),
    "global memory": (entry("", ".global .b8 x[99999999999];"), r"\.global"),
    "shared memory": (entry(".shared .b8 x[300000];"), "shared memory"),
    "local memory": (entry(".local .b8 x[600000];"), "local memory"),
    "local memory beyond 32 bits": (entry(".local .b8 x[4294967300];"), "local memory"),
    "parameters": (entry("", parameters=".param .b8 x[40000]"), "parameter memory"),
    "the alignment of shared memory": (entry(".shared .align 2048 .b8 x[16];"), "alignment 2048 of x"),
    "an alignment of 3": (entry("", ".global .align 3 .b8 x[16];"), "no power of two"),
    "an alignment of nothing": (entry(".shared .align 0 .b8 x[16];"), "no power of two"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "words"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_programs_beyond_a_limit_are_refused(gpu: Any, text: str, words: str) -> None:
    with pytest.raises(CompileError, match=rf"line \d+: .*{words}") as caught:
        gpu.compiler.load(text.encode())
    assert caught.value.result == INVALID_PTX


def test_programs_at_a_limit_are_loaded(gpu: Any) -> None:
    gpu.compiler.load(entry(f"call f{limits.CALL_DEPTH - 2}, ();", chain(limits.CALL_DEPTH - 1)).encode())
    gpu.compiler.load(entry(f".local .b8 x[{limits.LOCAL_BYTES}];").encode())


DECLARED = """.reg .b16 %h; .reg .b32 %r; .reg .b64 %w; .reg .f32 %f; .reg .f64 %d; .reg .pred %p;
"""
ILLEGAL = [
    "mul.wide.f32 %f, %f, %f;", "setp.nan.b16 %p, %h, %h;", "ex2.approx.f64 %d, %d;", "tanh.approx.f64 %d, %d;",
    "atom.add.b16 %h, [%w], %h;", "atom.min.f32 %f, [%w], %f;", "mul.s32 %r, %r, %r;", "add.s32 %w, %r, %r;",
    "add.s32 %r, %h, %r;", "add.s32 %r, [%w], %r;", "add.s32 {%r, %r}, %r, %r;", "mov.b32 %r, %p;",
    "setp.lt.s32 %r, %r, %r;", "selp.b32 %r, %r, %r, %r;", "ld.global.v2.u32 %r, [%w];",
    "ld.global.u32 {%r, %r}, [%w];", "ld.global.u32 %r, [%d];",
    "ld.global.v4.u64 {%w, %w, %w, %w}, [%w];", "st.global.u32 [%w], %p;", "add.rn.rz.f32 %f, %f, %f;",
    "cvt.u32 %r, %r;", "add.s32.s32 %r, %r, %r;", "setp.lt.and.s32 %p, %r, %r;", "atom.cas.b32 %r, [%w], %r;",
    "bra;", "bra %r;", "brx.idx %r, nowhere;", "@%p brx.idx %r, here;", "@%r mov.u32 %r, %r;",
    "call %w, (%r), nowhere;", "call (%r), %w;", "alloca.u64 %w, %w, 3;", "alloca.u64 %w, %w, 4096;",
    "alloca.u32 %r, %r;",
    "isspacep.surface %p, %w;",
    "vadd4.u32.u32 %r, %r, %r, %r;", "add.sat.u16x2 %r, %r, %r;", "min.relu.u16x2 %r, %r, %r;",
    "isspacep.global.u64 %p, %w;",
    "add.s32 %r, _, %r;", "st.global.u32 [%w], _;", "ld.global.u32 %r, [_];", "atom.global.add.u32 _, [_], %r;",
    "mov.b32 %r, {};", "mov.b32 {}, %r;", "mov.b64 %w, {_, %r};", "shfl.sync.down.b32 %r, %r, _, 31, -1;",
    "bar.sync _;", "bar.sync %w;", "vote.sync.all.pred %p, !_, -1;", "add.ftz.f64 %d, %d, %d;",
    "cvt.rni.ftz.f64.f64 %d, %d;",
    "tanh.approx.ftz.f32 %f, %f;", "shfl.sync.b32 %r, %r, 1, 31;", "addc.u16 %h, %h, %h;", "add.cc.u32 %r, %r;",
]  # fmt: skip


@pytest.mark.parametrize("line", ILLEGAL)
def test_illegal_instructions(gpu: Any, line: str) -> None:
    with pytest.raises(CompileError, match="line 7: ") as caught:
        gpu.compiler.load(entry(f"{DECLARED}{line}\nhere: .branchtargets there;\nthere:").encode())
    assert caught.value.result == INVALID_PTX


def test_instructions_without_code(gpu: Any) -> None:
    """All of a module's are reported in one error: line, family, what it belongs to, and the text."""
    names = list(refused.REFUSED)
    for start in range(0, len(names), 20):
        some = names[start : start + 20]
        body = "\n".join(f"{name}.what.ever.b32 %r, %r;" for name in some)
        with pytest.raises(CompileError) as caught:
            gpu.compiler.load(entry(f".reg .b32 %r;\n{body}").encode())
        for line, name in enumerate(some, 7):
            known = refused.reason(f"{name}.what.ever.b32")
            assert known == f"{name}, of {refused.REFUSED[name]}"
            assert f"line {line}: no code for {known}: {name}.what.ever.b32 %r, %r" in caught.value.message


@pytest.mark.parametrize("name", ["%envreg3", "%cluster_ctaid.x", "%clock99"])
def test_registers_without_code(gpu: Any, name: str) -> None:
    with pytest.raises(CompileError, match=f"line 7: no code for {refused.register(name)}: mov.u32 %r, {name}"):
        gpu.compiler.load(entry(f"{DECLARED}mov.u32 %r, {name};").encode())


@pytest.mark.parametrize("name", [*refused.MISSING_FUNCTIONS, "elsewhere"])
def test_functions_without_code(gpu: Any, name: str) -> None:
    why = f", of {refused.MISSING_FUNCTIONS[name]}" if name in refused.MISSING_FUNCTIONS else ", which has no body here"
    assert refused.function(name) == refused.MISSING_FUNCTIONS.get(name, "")
    text = entry(f"{DECLARED}call {name}, (%r);", f".extern .func {name}(.reg .b32 a);")
    with pytest.raises(CompileError, match=f"line 7: call of {name}{why}"):
        gpu.compiler.load(text.encode())


@pytest.mark.parametrize("garbage", ["%%%;", "add.s32 %r, = ;", "]]", "add", "\x01\x02;", "}}}}", "{;"])
def test_the_error_of_garbage_has_its_line(gpu: Any, garbage: str) -> None:
    with pytest.raises(CompileError, match=r"line \d+: ") as caught:
        gpu.compiler.load(entry(f"{DECLARED}{garbage}").encode())
    assert caught.value.result == INVALID_PTX


def test_alignments_up_to_a_kilobyte_are_honoured(gpu: Any) -> None:
    text = (Path(__file__).parent / "kernels" / "aligned.ptx").read_text()
    out = np.full(3, 7, np.uint64)
    gpu.run(text, "aligned", 1, 32, out, dynamic=64)
    assert out.tolist() == [0, 0, 3]
