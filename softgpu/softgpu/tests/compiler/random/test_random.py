"""Random PTX against an interpreter of the tree that it was written from. `make fuzz` runs more of it."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings

from softgpu import machine_code
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.random import lanes
from softgpu.tests.compiler.random.programs import programs
from softgpu.tests.compiler.random.text import ptx
from softgpu.tests.compiler.random.tree import Atomic, Call, Function, Load, Loop, Place, Program, Tangle, Vote, used

FILL = 0xAB


def check(gpu: Any, program: Program) -> None:
    """Runs the program, and compares its registers and memory, bit by bit but for what is no number."""
    text = ptx(program)
    note(f"grid {program.grid}, block {program.block}\n{text}")
    names = used(program.body)
    total = prod(program.grid) * prod(program.block)
    out = np.full(8 * total * max(1, len(names)), FILL, np.uint8)
    memory = lanes.Memory.of(program)
    expected = lanes.run(program, memory.copy())
    gpu.run(text, "k", program.grid, program.block, memory.given, memory.own, memory.column, memory.acc, out)
    for name, row in zip(names, out.reshape(-1, total, 8), strict=False):
        value = expected.registers[name].ravel()
        dtype = np.dtype(np.uint32) if name.startswith("p") else value.dtype
        actual = np.ascontiguousarray(row[:, : dtype.itemsize]).view(dtype)[:, 0]
        wanted = np.where(expected.ended.ravel(), np.full(8, FILL, np.uint8).view(dtype)[0], value.astype(dtype))
        _same(name, actual, wanted)
    for name in ("own", "column", "acc", "given"):
        _same(name, getattr(memory, name), getattr(expected.memory, name))


def _same(name: str, actual: np.ndarray, wanted: np.ndarray) -> None:
    bits = f"u{actual.dtype.itemsize}"
    differ = actual.view(bits) != wanted.view(bits)
    if actual.dtype.kind == "f":
        differ &= ~(np.isnan(actual) & np.isnan(wanted))
    where = np.nonzero(differ)[0]
    assert not len(where), (
        f"{name} differs at {len(where)} places, first {where[:6]}: {actual[where[:6]]}, not {wanted[where[:6]]}"
    )


# The loaded value decides only how long the loop inside goes on.
LOAD_BEFORE_A_LOOP = Program(
    (1,), (32,),
    (Loop("u1", False, (Loop("r0", False, (
        Tangle("p0", "r0", (), ()),
        Load("b32", ("r0",), Place("in", 0, "", 0, "volatile"), ""),
        Vote("ballot", ("r0",), "p0"),
    )),)),),
    (), 2,
)  # fmt: skip


# An atomic's result decides how long a called function goes on, and nothing about the loops around the call.
ATOMIC_BEFORE_A_CALL = Program(
    (1,), (32,),
    (Loop("r0", False, (Loop("r0", False, (
        Vote("ballot", ("r1",), "p0"),
        Call(0, "r0", ("r0", "r0")),
        Atomic("add", "u32", "r0", Place("own", 0, "", 0, ""), ("r0",)),
    )),)),),
    (Function((Tangle("p0", "r0", (), ()),), False),), 0,
)  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@example(program=LOAD_BEFORE_A_LOOP)
@example(program=ATOMIC_BEFORE_A_CALL)
@given(program=programs())
def test_random_programs(gpu: Any, program: Program) -> None:
    check(gpu, program)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_programs_whose_variables_stay_in_memory(gpu: Any, compiled: Path, program: Program) -> None:
    """LLVM would take minutes to move the variables of code with very many branches to registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_code, "_MOST_PHIS", -1)
        check(Gpu(gpu.library, compiled / "most_phis"), program)
