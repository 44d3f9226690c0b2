"""The control flow graph of a kernel, with the registers that live across its edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from softgpu.analysis import watching
from softgpu.analysis.block_order import in_order
from softgpu.analysis.blocks import EXIT, Block, Branch, Jump, Step, Switch, Terminator
from softgpu.analysis.live_ranges import split
from softgpu.codegen.family import Operation
from softgpu.ptx import limits
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import (
    Address,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    PtxError,
    Register,
    Symbol,
    Unsupported,
    Vector,
)


@dataclass(slots=True)
class Flow:
    """Blocks in order, the bit of each register, and for each block the registers that live at its start and end.

    The bit of a register that only one block knows is 0: it lives at no start and no end.
    """

    blocks: list[Block]
    register_bit: dict[str, int]
    live_in: list[int]  # bit sets of registers
    live_out: list[int]


def build(kernel: Kernel, operation: Callable[[Instruction], Operation]) -> Flow:
    """Return the control flow graph of a kernel.

    Raises:
        PtxError: a branch has no target.
        Unsupported: an instruction has no code.
    """
    blocks = in_order(_thread_exits(_split(kernel, operation)))
    watching.stretch(blocks)
    local = split(blocks, kernel.registers)
    register_bit: dict[str, int] = {}
    for block in blocks:
        for step in block.steps:
            for name in (*step.writes, *step.reads):
                if name not in local:
                    register_bit.setdefault(name, 1 << len(register_bit))
        if not isinstance(block.end, Jump):
            register_bit.setdefault(block.end.register, 1 << len(register_bit))
    limits.check_flow(len(blocks), len(register_bit))
    register_bit |= dict.fromkeys(local, 0)
    live_in, live_out = _liveness(blocks, register_bit)
    return Flow(blocks, register_bit, live_in, live_out)


def _step(inst: Instruction, op: Operation) -> Step:
    writes: tuple[str, ...] = ()
    sources = inst.operands
    if sources and op.family.has_result:
        writes = tuple(_registers(sources[0]))
        sources = sources[1:]
    reads = [name for operand in sources for name in _registers(operand)]
    if inst.guard is not None:
        reads.append(inst.guard.name)
    return Step(inst, op, writes, tuple(reads))


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Register(name):
            if name != "_":
                yield name
        case Address(base, _):
            yield from _registers(base)
        case Vector(items):
            for item in items:
                yield from _registers(item)
        case Pair(first, second):
            yield from _registers(first)
            yield from _registers(second)
        case Not(register):
            yield register.name


def _split(kernel: Kernel, operation: Callable[[Instruction], Operation]) -> list[Block]:
    """Return the blocks in the order of the text."""
    starts: dict[str, int] = {}
    tables: dict[str, tuple[str, ...]] = {}
    raw: list[tuple[list[Step], Instruction | None]] = [([], None)]
    watches = any(isinstance(item, Instruction) and watching.is_watch(item) for item in kernel.body)

    def cut(end: Instruction | None) -> None:
        raw[-1] = (raw[-1][0], end)
        raw.append(([], None))

    for item in kernel.body:
        if isinstance(item, Label):
            if item.targets:
                tables[item.name] = item.targets
                continue
            if raw[-1][0]:
                cut(None)
            starts[item.name] = len(raw) - 1
            continue
        base = item.opcode.split(".", 1)[0]
        if base in ("bra", "brx", "ret", "exit"):
            cut(item)
        elif item.guard is not None and operation(item).family.guard_branches:
            skip = f"$guard{len(raw)}"
            cut(Instruction(item.line, "bra", (Symbol(skip),), item.text, item.guard, not item.negated))
            plain = Instruction(item.line, item.opcode, item.operands, item.text)
            raw[-1][0].append(_step(plain, operation(plain)))
            cut(None)
            starts[skip] = len(raw) - 1
        else:
            if watches and raw[-1][0] and watching.is_meeting(item):
                cut(None)
            raw[-1][0].append(_step(item, operation(item)))

    def find(name: str, line: int) -> int:
        if name not in starts:
            raise PtxError(line, f"no label {name}")
        return starts[name]

    blocks = []
    for index, (steps, end) in enumerate(raw):
        follow = index + 1 if index + 1 < len(raw) else EXIT
        blocks.append(Block(steps, _terminator(end, follow, tables, find)))
    return blocks


def _terminator(
    end: Instruction | None, follow: int, tables: dict[str, tuple[str, ...]], find: Callable[[str, int], int]
) -> Terminator:
    if end is None:
        return Jump(follow)
    if end.opcode.startswith("brx"):
        index, table = end.operands[0], end.operands[1]
        if not isinstance(index, Register) or not isinstance(table, Symbol) or table.name not in tables:
            raise PtxError(end.line, f"no jump table for {end.text!r}")
        if end.guard is not None:
            raise Unsupported(end.line, "a guarded brx")
        return Switch(index.name, tuple(find(name, end.line) for name in tables[table.name]))
    target = EXIT
    if end.opcode.startswith("bra"):
        label = end.operands[0] if end.operands else None
        if not isinstance(label, Symbol):
            raise PtxError(end.line, f"no label in {end.text!r}")
        target = find(label.name, end.line)
    if end.guard is None or target == follow:
        return Jump(target)
    return Branch(end.guard.name, end.negated, target, follow)


def _thread_exits(blocks: list[Block]) -> list[Block]:
    """Let branches to an empty block lead to that block's own target, or to the end of the thread."""

    def final(target: int) -> int:
        seen = set()
        while target != EXIT and target not in seen:
            seen.add(target)
            block = blocks[target]
            if block.steps or not isinstance(block.end, Jump):
                break
            target = block.end.target
        return target

    for block in blocks:
        match block.end:
            case Jump(target):
                block.end = Jump(final(target))
            case Branch(register, negated, taken, otherwise):
                taken, otherwise = final(taken), final(otherwise)
                block.end = Jump(taken) if taken == otherwise else Branch(register, negated, taken, otherwise)
            case Switch(register, targets):
                ways = tuple(final(target) for target in targets)
                block.end = Jump(ways[0]) if len(set(ways)) == 1 else Switch(register, ways)
    return blocks


def _liveness(blocks: list[Block], register_bit: dict[str, int]) -> tuple[list[int], list[int]]:
    used, killed = [], []
    for block in blocks:
        use = kill = 0
        for step in block.steps:
            for name in step.reads:
                use |= register_bit[name] & ~kill
            for name in step.writes:
                if step.inst.guard is None:
                    kill |= register_bit[name]
                else:  # the old value lives on where the guard is false
                    use |= register_bit[name] & ~kill
        if not isinstance(block.end, Jump):
            use |= register_bit[block.end.register] & ~kill
        used.append(use)
        killed.append(kill)
    live_in, live_out = list(used), [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for index in range(len(blocks) - 1, -1, -1):
            out = 0
            for target in blocks[index].successors:
                if target != EXIT:
                    out |= live_in[target]
            inside = used[index] | (out & ~killed[index])
            if out != live_out[index] or inside != live_in[index]:
                live_out[index], live_in[index] = out, inside
                changed = True
    return live_in, live_out
