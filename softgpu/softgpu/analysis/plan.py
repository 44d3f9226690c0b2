"""Finds, for one kernel and block shape, the shape of every register and the branches at which lanes may diverge."""

from __future__ import annotations

from dataclasses import dataclass

from softgpu.analysis.blocks import Jump, Step, bits
from softgpu.analysis.flow import Flow
from softgpu.analysis.pending import Pending, pending
from softgpu.analysis.shapes import (
    UNIFORM,
    VARYING,
    WARP,
    Affine,
    Shape,
    Varying,
    add,
    constant,
    flat,
    is_flat,
    is_uniform,
    join,
    ramp,
    thread_index,
)
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import Address, Immediate, Not, Operand, Register, Special, Symbol, Vector
from softgpu.ptx.types import SCALARS


@dataclass(slots=True)
class Plan:
    """The result of the analysis. divergent: blocks where lanes may diverge; whole_warps: every warp has 32 threads."""

    flow: Flow
    shapes: dict[str, Shape]
    divergent: set[int]
    pending: Pending
    elsewhere: list[int]  # for each block, the registers that lanes waiting elsewhere may still read
    whole_warps: bool

    def is_live_elsewhere(self, block: int, name: str) -> bool:
        """Return True if lanes that wait elsewhere while the block runs may still read the register."""
        return bool(self.elsewhere[block] & self.flow.register_bit[name])

    def is_full(self, block: int) -> bool:
        """Return True if all 32 lanes always run this block."""
        return self.whole_warps and not self.pending.waiting[block] and not self.pending.ended[block]


def special_shape(name: str, block: tuple[int, int, int]) -> Shape:
    """Return the shape of a special register in a block of this shape."""
    if name.startswith("%tid."):
        return thread_index("xyz".index(name[-1]), block)
    if name.startswith("%ntid."):
        return constant(block["xyz".index(name[-1])])
    if name == "%laneid":
        return Affine(ramp(WARP, 1), WARP, None, WARP)
    return VARYING if name.startswith("%lanemask_") else UNIFORM


def symbol_shape(symbol: Symbol, kernel: Kernel) -> Shape:
    """Return the shape of a variable's address: only local variables differ between lanes."""
    if symbol.name in kernel.shared:
        return constant(kernel.shared[symbol.name] + symbol.offset)
    if symbol.name in kernel.local:
        return Affine(ramp(WARP, kernel.local_bytes), 16)
    return UNIFORM


def plan(flow: Flow, kernel: Kernel, block: tuple[int, int, int]) -> Plan:
    """Return the plan: begin with uniform registers and no divergence, and weaken this until it is consistent.

    A register must be Varying if some lanes write it while waiting lanes still need its old value.
    """
    unsafe: set[str] = set()
    threads = block[0] * block[1] * block[2]
    while True:
        shapes = _Inference(flow, kernel, block, unsafe).run()
        divergent = {index for index in range(len(flow.blocks)) if _parts(flow, index, shapes)}
        waits = pending(flow.blocks, divergent)
        elsewhere = [0] * len(flow.blocks)
        found: set[str] = set()
        for index, block_ in enumerate(flow.blocks):
            for other in bits(waits.waiting[index]):
                elsewhere[index] |= flow.live_in[other]
            if elsewhere[index]:
                for step in block_.steps:
                    found.update(n for n in step.writes if elsewhere[index] & flow.register_bit[n])
        if found <= unsafe:
            return Plan(flow, shapes, divergent, waits, elsewhere, threads % WARP == 0)
        unsafe |= found


def _parts(flow: Flow, index: int, shapes: dict[str, Shape]) -> bool:
    end = flow.blocks[index].end
    return not isinstance(end, Jump) and not is_uniform(shapes[end.register])


class _Inference:
    def __init__(self, flow: Flow, kernel: Kernel, block: tuple[int, int, int], unsafe: set[str]) -> None:
        self.flow, self.kernel, self.block = flow, kernel, block
        self.shapes: dict[str, Shape | None] = dict.fromkeys(flow.register_bit)
        for name in unsafe:
            self.shapes[name] = VARYING

    def run(self) -> dict[str, Shape]:
        steps = [step for block in self.flow.blocks for step in block.steps if step.writes]
        readers: dict[str, list[int]] = {name: [] for name in self.shapes}
        for index, step in enumerate(steps):
            for name in {*step.reads}:
                readers[name].append(index)
        due = [True] * len(steps)
        while True:
            while any(due):
                for index, step in enumerate(steps):
                    if due[index]:
                        due[index] = False
                        for name in self.step(step):
                            for reader in readers[name]:
                                due[reader] = True
            unknown = [name for name, shape in self.shapes.items() if shape is None]
            if not unknown:
                break
            # Registers that are read but never written, or written only from such: any value is right, they get zero.
            for name in unknown:
                self.shapes[name] = VARYING
                for reader in readers[name]:
                    due[reader] = True
        return {name: shape for name, shape in self.shapes.items() if shape is not None}

    def step(self, step: Step) -> list[str]:
        """Join the result into the registers that the step writes, and return those that changed."""
        changed: list[str] = []
        if all(isinstance(self.shapes[name], Varying) for name in step.writes):
            return changed
        shape = self.result(step)
        if shape is None:
            return changed
        for name in step.writes:
            fitting = shape
            if isinstance(shape, Affine) and not is_flat(shape) and SCALARS[self.kernel.registers[name]].kind in "fp":
                fitting = VARYING
            old = self.shapes[name]
            new = join(old, fitting)
            if isinstance(new, Affine) and isinstance(old, Affine) and new == old:
                continue
            if new != old:
                self.shapes[name] = new
                changed.append(name)
        return changed

    def result(self, step: Step) -> Shape | None:
        sources: list[Shape] = []
        operands = step.inst.operands[1:] if step.op.family.has_result else step.inst.operands
        if not self.gather(operands, sources):
            return None
        if step.inst.guard is not None:
            guard = self.shapes[step.inst.guard.name]
            if guard is None:
                return None
            if not is_uniform(guard):
                return VARYING
        shape = step.op.family.shape(step.op, sources)
        if step.op.family.has_result and isinstance(step.inst.operands[0], Vector):
            return flat([shape])  # each item is a part of the value
        return shape

    def gather(self, operands: tuple[Operand, ...], out: list[Shape]) -> bool:
        for operand in operands:
            if isinstance(operand, Vector):
                if not self.gather(operand.items, out):
                    return False
                continue
            shape = self.of(operand)
            if shape is None:
                return False
            out.append(shape)
        return True

    def of(self, operand: Operand) -> Shape | None:
        match operand:
            case Register(name):
                return self.shapes[name]
            case Immediate(value, float_bits):
                return UNIFORM if float_bits else constant(value)
            case Special(name):
                return special_shape(name, self.block)
            case Symbol():
                return symbol_shape(operand, self.kernel)
            case Not(register):
                return self.shapes[register.name]
            case Address(base, offset):
                shape = self.of(base)
                return None if shape is None else add(shape, constant(offset))
        return VARYING
