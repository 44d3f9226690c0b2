"""The time of a compilation grows with the length of a kernel: a branch does not make it look at all others."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from softgpu import examination, machine_code, target
from softgpu.codegen import kernel as codegen
from softgpu.tests.compiler.harness import HEADER


def long(branches: int, kept: int = 20) -> str:
    """Floats that live as long as the kernel, and after each step a branch at which lanes part."""
    lines = [f".reg .f32 %f<{kept}>; .reg .b64 %a, %w; .reg .b32 %t; .reg .pred %p;"]
    lines += ["ld.param.u64 %a, [a]; mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 4; add.s64 %a, %a, %w;"]
    lines += [f"ld.global.f32 %f{i}, [%a+{128 * i}];" for i in range(kept)]
    for step in range(branches):
        a, b = f"%f{step % kept}", f"%f{(step + 7) % kept}"
        lines += [f"fma.rn.f32 {a}, {a}, {b}, {b}; setp.gt.f32 %p, {a}, 0f40A00000; @%p bra L{step};"]
        lines += [f"mul.f32 {a}, {a}, 0f3F000000; L{step}:"]
    lines += [f"st.global.f32 [%a+{128 * i}], %f{i};" for i in range(kept)]
    return HEADER + "\n".join([".visible .entry k(.param .u64 a) {", *lines, "ret; }"])


def merges(branches: int) -> int:
    """Return the number of places where the compiler merges a register's values from two paths."""
    _, kernels = examination.examine(long(branches))
    module = llvm.parse_assembly(codegen.generate(kernels["k"], (32, 1, 1), target.host()).text, llvm.create_context())
    machine = machine_code._machine(target.host())
    for passes in (machine_code._to_registers(), machine_code._combined()):
        machine_code._run(machine, module, passes)
    return str(module).count(" phi ")


@pytest.mark.parametrize("branches", [25, 100])
def test_merges_grow_linearly_with_branches(branches: int) -> None:
    assert merges(branches) <= 4 * branches
