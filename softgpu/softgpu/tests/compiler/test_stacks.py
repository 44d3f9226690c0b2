"""No code from PTX reads a stack that it has not written, and none reaches beyond the end of its stack."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from softgpu import machine_code
from softgpu.codegen import kernel as codegen
from softgpu.examination import examine
from softgpu.target import host
from softgpu.tests.compiler.attacks import ATTACKS, BLOCK, SHAPES, kernel
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.harness import HEADER
from tests.lanes import spread

HERE = Path(__file__).parent
IMAGES = [*sorted((HERE / "kernels").glob("*.ptx")), *sorted((HERE / "corpus").rglob("*.ptx"))]
DIRT = 0xD127D127
TWO_WARPS = (
    HEADER
    + """
.visible .entry k()
{
 .reg .b32 %t; .reg .pred %p;
 mov.u32 %t, %tid.x; setp.ge.u32 %p, %t, 32; @%p bra END;
 bar.sync 0; // the first warp waits on the stack of its thread, until the second has ended
END:
 ret;
}"""
)

# --- what runs: lanes that leave a block show what their stack held, if anything does

SLOTS = {
    "a gather": "mul.wide.u32 %h, %t, %t; mul.lo.u64 %h, %h, %z; add.u64 %h, %h, %in; ld.global.u64 %r, [%h];",
    "a gather of four": "mul.wide.u32 %h, %t, %t; mul.lo.u64 %h, %h, %z; add.u64 %h, %h, %in; "
    "ld.global.v4.u32 {%a, %b, %c, %d}, [%h]; mov.b64 %r, {%c, %d};",
    "atom": "atom.global.add.u64 %r, [%in], 0;",
    "atom.cas": "atom.global.cas.b64 %r, [%in], 0, 0;",
    "atom.add.f64": "atom.global.add.f64 %r, [%in], 0d0000000000000000;",
    "match": "cvt.u32.u64 %a, %z; add.u32 %a, %a, %t; match.any.sync.b32 %b, %a, -1; mov.b64 %r, {%b, %b};",
    "redux": "add.u32 %a, %t, 1; redux.sync.add.u32 %b, %t, %a; mov.b64 %r, {%b, %b};",
    "shfl": "cvt.u32.u64 %a, %z; add.u32 %a, %a, %t; shfl.sync.bfly.b32 %b, %t, %a, 31, -1; mov.b64 %r, {%b, %b};",
    "vprintf": "{ .param .b64 f; .param .b64 a; .param .b32 s; st.param.b64 [f], %f; st.param.b64 [a], %f; "
    "call.uni (s), vprintf, (f, a); ld.param.b32 %b, [s]; } mov.b64 %r, {%b, %b};",
    "a register that other lanes wrote": "@%s bra ELSE; mul.wide.u32 %r, %t, %t; bra.uni BOTH; "
    "ELSE: mul.wide.u32 %r, %t, 3; BOTH:",
    "a register that no lane wrote": "@!%s bra NOT; mul.wide.u32 %r, %t, %t; NOT:",
    "a load of some lanes": "@!%s ld.global.u64 %r, [%in];",
    "a load of one group": "shr.u32 %a, %t, 3; mul.wide.u32 %h, %a, 8; add.u64 %h, %h, %in; ld.global.u64 %r, [%h];",
}


def shown(body: str) -> str:
    """Return a kernel of two warps: one lane of the second goes on, and stores what shuffles of %r give it."""
    shuffles = "".join(
        f"shfl.sync.idx.b32 %d, %lo, {lane}, 31, -1; st.global.u32 [%o+{8 * lane}], %d;\n"
        f"shfl.sync.idx.b32 %d, %hi, {lane}, 31, -1; st.global.u32 [%o+{8 * lane + 4}], %d;\n"
        for lane in range(32)
    )
    return f"""{HEADER}
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[1];
.visible .entry k(.param .u64 out, .param .u64 in, .param .u64 zero)
{{
 .reg .b64 %o, %in, %z, %h, %r, %f; .reg .b32 %t, %a, %b, %c, %d, %lo, %hi; .reg .pred %p, %s;
 ld.param.u64 %o, [out]; ld.param.u64 %in, [in]; ld.param.u64 %z, [zero]; mov.u32 %t, %tid.x;
 mov.u64 %f, text; cvta.global.u64 %f, %f;
 bar.sync 0;
 setp.ne.u32 %p, %t, 32; @%p bra END;
 cvt.u32.u64 %a, %z; setp.eq.u32 %s, %a, %t;
 {body}
 mov.b64 {{%lo, %hi}}, %r;
 {shuffles}
END: ret;
}}"""


@pytest.mark.parametrize("name", SLOTS)
def test_lanes_that_do_not_run_show_nothing_of_the_stack(gpu: Gpu, name: str) -> None:
    """The same launch on clean and on dirty stacks: on stacks of warps, and on the thread's own, which warp 0 has."""
    for text, block in ((shown(SLOTS[name]), 64), (shown(SLOTS[name]).replace("%t, 32;", "%t, 0;"), 32)):
        for _ in range(2):
            out, given = np.zeros(64, np.uint32), np.zeros(8, np.uint64)
            gpu.run(text, "k", 1, block, out, given, np.uint64(0))
            assert not (out == DIRT).any()
            gpu.library.sg_test_dirty_stacks(DIRT)


def test_stacks_are_cleared_before_kernels_of_another_window(
    runner: ctypes.CDLL, fenced_gpu: Gpu, tmp_path: Path
) -> None:
    other = Gpu(runner, tmp_path, fenced=True)
    fenced_gpu.run(TWO_WARPS, "k", 1, 64)
    runner.sg_test_dirty_stacks(DIRT)
    fenced_gpu.run(TWO_WARPS, "k", 1, 64)
    assert runner.sg_test_dirt(DIRT) > 100_000
    other.run(TWO_WARPS, "k", 1, 64)
    assert not runner.sg_test_dirt(DIRT)


# --- the code itself: each slot is written before it is read

SIZES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8, "ptr": 8}
KIND = re.compile(r"(?:<|\[)?(?:(\d+) x )?(\w+)(?:>|\])?$")
ELEMENT = re.compile(r"getelementptr (<[^>]*>|\w+), ptr (\S+), i64 (\d+)$")


def size_of(kind: str) -> int:
    match = KIND.match(kind)
    assert match, kind
    return int(match[1] or 1) * SIZES[match[2]]


class Slots:
    """The slots of one function: the bytes of each that hold what this function has written."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.first: dict[str, set[int]] = {}  # by the entry block
        self.written: dict[str, set[int]] = self.first  # by this block
        self.made: dict[str, str] = {}
        self.strays: list[str] = []

    def places(self, pointer: str, offset: int = 0) -> Iterator[tuple[str, int]]:
        """Yield the (slot, offset) to which a pointer may point."""
        if pointer in self.bytes:
            yield pointer, offset
        how = self.made.get(pointer, "")
        if match := ELEMENT.match(how):
            yield from self.places(match[2], offset + int(match[3]) * size_of(match[1]))
        if match := re.match(r"select i1 \S+, ptr (\S+), ptr (\S+)$", how):
            yield from self.places(match[1], offset)
            yield from self.places(match[2], offset)

    def read(self, line: str, pointer: str, count: int) -> None:
        for slot, offset in self.places(pointer):
            held = self.first.get(slot, set()) | self.written.get(slot, set())
            if not held.issuperset(range(offset, offset + count)):
                self.strays.append(line)

    def write(self, pointer: str, count: int) -> None:
        found = list(self.places(pointer))
        if len(found) == 1:
            ((slot, offset),) = found
            self.written.setdefault(slot, set()).update(range(offset, offset + count))

    def step(self, line: str) -> None:
        name, _, what = line.rpartition(" = ") if line.startswith("%") else ("", "", line)
        self.made[name] = what
        if match := re.match(r"alloca (.*?)(, align \d+)?$", what):
            self.bytes[name] = size_of(match[1])
        elif match := re.match(r"load (?:volatile )?(<[^>]*>|\w+), ptr ([^\s,]+)", what):
            self.read(line, match[2], size_of(match[1]))
        elif match := re.match(r"store (?:volatile )?(<\d+ x \w+>|\[\d+ x \w+\]|\w+) .*, ptr ([^\s,]+)", what):
            self.write(match[2], size_of(match[1]))
        elif match := re.match(r"call .*@(\w[\w.]*)\((.*)\)$", what):
            self.call(line, match[1], re.findall(r"ptr (?:align \d+ )?(%[^\s,]+)", match[2]), match[2])

    def call(self, line: str, routine: str, pointers: list[str], arguments: str) -> None:
        """Note what the runner's routine reads and writes; those that go by a mask write nothing for sure."""
        if routine == "sg_rt_widen":
            self.write(pointers[-1], self.bytes[pointers[-1]])
            return
        if match := re.match(r"sg_rt_(half_to_float|float_to_half)$", routine):
            count = int(arguments.rsplit(" ", 1)[1])
            half = match[1].startswith("half")
            self.read(line, pointers[0], count * (2 if half else 4))
            self.write(pointers[1], count * (4 if half else 2))
            return
        for pointer in pointers:
            if re.match(r"%(in\d|addresses)$", pointer) and "sg_rt_atom" not in routine and pointer not in self.written:
                self.strays.append(line)  # an atomic operation of one operand ignores the second


def unwritten(text: str) -> list[str]:
    """Return the lines of LLVM code that read bytes of a slot which neither their block nor the entry has written."""
    strays: list[str] = []
    for function in re.findall(r"^define .*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        slots = Slots()
        blocks = re.split(r"^([\w.]+):\n", function, flags=re.MULTILINE)
        for number, block in enumerate((blocks[0], *blocks[2::2])):
            slots.written = {} if number > 1 else slots.first
            for line in map(str.strip, block.splitlines()):
                slots.step(line)
        strays += slots.strays
    return strays


def undefined(text: str) -> list[str]:
    """Return the lines in which the passes that move slots to registers found one that was not written on some path."""
    module = llvm.parse_assembly(text, llvm.create_context())
    machine = machine_code._machine(host())
    machine_code._run(machine, module, machine_code._to_registers())
    return [line for line in str(module).splitlines() if re.search(r"\bundef\b", line)]


@pytest.mark.parametrize("image", spread(IMAGES, 5), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_slot_of_a_compiled_program_is_written_before_it_is_read(image: Path) -> None:
    _, kernels = examine(image.read_text())
    for one in kernels.values():
        assert not unwritten(codegen.generate(one, (64, 1, 1), host()).text)


@pytest.mark.parametrize("name", SLOTS)
def test_llvm_finds_no_slot_that_was_not_written(name: str) -> None:
    _, kernels = examine(shown(SLOTS[name]))
    text = codegen.generate(kernels["k"], (64, 1, 1), host(), fenced=True).text
    assert not unwritten(text)
    assert not undefined(text)


@pytest.mark.parametrize("shape", spread(SHAPES, 3))
@pytest.mark.parametrize("name", spread(ATTACKS, 12))
def test_each_slot_of_an_access_is_written_before_it_is_read(name: str, shape: str) -> None:
    _, kernels = examine(kernel(shape, ATTACKS[name]))
    for guarded in (False, True):
        text = codegen.generate(kernels["k"], (BLOCK - guarded, 1, 1), host(), fenced=True).text
        assert not unwritten(text)


# --- the end of a stack

FRAME_BYTES = 640 << 10
"""More than the 512 KiB of a warp's stack and its guard of 64 KiB."""


def test_a_frame_that_is_larger_than_the_stack_ends_the_launch(
    runner: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the code touches nothing of it: below the guard lies memory of others."""
    generate = codegen.generate

    def large(*given: Any, **named: Any) -> codegen.Code:
        code = generate(*given, **named)
        frame = f'%frame = alloca [{FRAME_BYTES} x i8]\ncall void asm sideeffect "", "r"(ptr %frame)\n'
        return replace(code, text=code.text.replace("entry:\n", "entry:\n" + frame, 1))

    monkeypatch.setattr(codegen, "generate", large)
    gpu = Gpu(runner, tmp_path)
    with pytest.raises(RuntimeError, match=r"719: illegal access in block .* warp 1: .*: stack overflow"):
        gpu.run(TWO_WARPS, "k", 1, 64)
    gpu.run(TWO_WARPS, "k", 1, 32)  # the thread's own stack is larger


def test_each_function_touches_the_pages_of_its_frame() -> None:
    _, kernels = examine((HERE / "corpus" / "cutlass" / "hgemm.ptx").read_text())
    for one in kernels.values():
        heads = [line for line in codegen.generate(one, (64, 1, 1), host()).text.splitlines() if line[:6] == "define"]
        assert heads
        assert all('"probe-stack"="inline-asm"' in line for line in heads)
