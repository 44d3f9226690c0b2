"""ldmatrix: a load that spreads small tiles over a warp; programs also use it without tensor cores."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING, WARP
from softgpu.codegen.addresses import address_vector, place
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.memcheck import Verb, check
from softgpu.codegen.tensor import need_whole_warp
from softgpu.codegen.values import Value, integer
from softgpu.ptx.model import Register, Vector

ROWS, ROW_BYTES = 8, 16


def load_matrices(e: Emitter, step: Step) -> None:
    """Emit ldmatrix. The first 8 lanes give the addresses of the first tile's rows, the next 8 of the second's, ..."""
    target = step.inst.operands[0]
    assert isinstance(target, Vector)
    count = len(target.items)
    need_whole_warp(e, step)
    where = place(e, step.op, step.inst.operands[1], ROW_BYTES)
    mask, _ = e.active(step)
    named = e.new(f"and i32 {mask}, {integer('i32', (1 << ROWS * count) - 1)}")
    check(e, step, where, named, ROW_BYTES, Verb.READ)
    e.put(f"store <{WARP} x i64> {address_vector(e, where.value)}, ptr %addresses")
    numbers = (str(count), str(int("trans" in step.op.modifiers)), named)
    e.call("sg_rt_load_matrices", [("ptr", "%addresses"), *(("i32", number) for number in numbers), ("ptr", "%out")])
    for index, item in enumerate(target.items):
        assert isinstance(item, Register)
        e.write(item.name, Value(VARYING, "i32", [e.result("i32", index=index)]), step)
