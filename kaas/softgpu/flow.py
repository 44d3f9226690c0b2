"""Control flow of one kernel: basic blocks in an order that can run under masks, loops, liveness, pending lanes.

When lanes of a warp part, the blocks they go to run one after the other in `Flow.blocks` order, each under the mask of
the lanes that wait for it. The order is topological but for the branches back to the head of a loop, and the blocks of
a loop are contiguous, so lanes that left a loop wait behind it and lanes that part meet again as early as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kaas.softgpu.family import Operation
from kaas.softgpu.inline import Kernel
from kaas.softgpu.ptx import Address, Instruction, Label, Not, Operand, Pair, PtxError, Register, Symbol, Unsupported, Vector

EXIT = -1


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction with the registers it writes and reads (the guard included)."""

    inst: Instruction
    op: Operation
    writes: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    target: int


@dataclass(frozen=True, slots=True)
class Branch:
    register: str
    negated: bool
    taken: int
    otherwise: int


@dataclass(frozen=True, slots=True)
class Switch:
    register: str
    targets: tuple[int, ...]


Terminator = Jump | Branch | Switch


@dataclass(slots=True)
class Block:
    steps: list[Step] = field(default_factory=list)
    end: Terminator = Jump(EXIT)
    loops: tuple[tuple[int, int], ...] = ()  # (head, last block) of the loops around it, innermost first

    @property
    def successors(self) -> tuple[int, ...]:
        match self.end:
            case Jump(target):
                return (target,)
            case Branch(_, _, taken, otherwise):
                return (taken, otherwise)
            case Switch(_, targets):
                return tuple(dict.fromkeys(targets))


@dataclass(slots=True)
class Flow:
    blocks: list[Block]
    register_bit: dict[str, int]
    live_in: list[int]  # bit sets of registers
    live_out: list[int]


def bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def build(kernel: Kernel, operation: Callable[[Instruction], Operation]) -> Flow:
    """Raises PtxError for a branch to nowhere, Unsupported for an instruction without code."""
    blocks = _order(_thread_exits(_split(kernel, operation)))
    register_bit: dict[str, int] = {}
    for block in blocks:
        for step in block.steps:
            for name in (*step.writes, *step.reads):
                register_bit.setdefault(name, 1 << len(register_bit))
        if not isinstance(block.end, Jump):
            register_bit.setdefault(block.end.register, 1 << len(register_bit))
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
    """Blocks in the order of the text."""
    starts: dict[str, int] = {}
    tables: dict[str, tuple[str, ...]] = {}
    raw: list[tuple[list[Step], Instruction | None]] = [([], None)]

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


def _terminator(end: Instruction | None, follow: int, tables: dict[str, tuple[str, ...]], find: Callable[[str, int], int]) -> Terminator:
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
    """Branches to a block that does nothing but end the thread, or go on, lead to where it leads."""

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
                block.end = Switch(register, tuple(final(target) for target in targets))
    return blocks


def _order(blocks: list[Block]) -> list[Block]:
    """Reachable blocks in reverse post-order with contiguous loops, renumbered."""
    post: list[int] = []
    seen = {0}
    stack = [(0, iter(blocks[0].successors))]
    while stack:
        node, successors = stack[-1]
        for target in successors:
            if target != EXIT and target not in seen:
                seen.add(target)
                stack.append((target, iter(blocks[target].successors)))
                break
        else:
            post.append(node)
            stack.pop()
    order = post[::-1]
    loops = _loops(blocks, order)
    order = _contiguous(order, loops)
    place = {node: index for index, node in enumerate(order)}
    place[EXIT] = EXIT
    spans = [(place[head], max(place[node] for node in body), body) for head, body in loops.items()]
    spans.sort(key=lambda span: span[1] - span[0])
    out = []
    for node in order:
        block = blocks[node]
        match block.end:
            case Jump(target):
                block.end = Jump(place[target])
            case Branch(register, negated, taken, otherwise):
                block.end = Branch(register, negated, place[taken], place[otherwise])
            case Switch(register, targets):
                block.end = Switch(register, tuple(place[target] for target in targets))
        block.loops = tuple((head, last) for head, last, body in spans if node in body)
        out.append(block)
    return out


def _loops(blocks: list[Block], order: list[int]) -> dict[int, set[int]]:
    """Natural loops by head. A branch back that enters no natural loop (irreducible flow) makes none."""
    place = {node: index for index, node in enumerate(order)}
    before: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for target in blocks[node].successors:
            if target != EXIT:
                before[target].append(node)
    parent = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            best: int | None = None
            for one in before[node]:
                if one not in parent:
                    continue
                if best is None:
                    best = one
                    continue
                other = one
                while best != other:
                    while place[best] > place[other]:
                        best = parent[best]
                    while place[other] > place[best]:
                        other = parent[other]
            assert best is not None
            if parent.get(node) != best:
                parent[node] = best
                changed = True
    loops: dict[int, set[int]] = {}
    for node in order:
        for head in blocks[node].successors:
            if head == EXIT or place[head] > place[node]:
                continue
            above = node
            while place[above] > place[head]:
                above = parent[above]
            if above != head:
                continue
            body = loops.setdefault(head, {head})
            work = [node]
            while work:
                one = work.pop()
                if one not in body:
                    body.add(one)
                    work += before[one]
    return loops


def _contiguous(order: list[int], loops: dict[int, set[int]]) -> list[int]:
    """Moves what lies between a loop's blocks behind the loop, outer loops first."""
    for head in sorted(loops, key=lambda head: -len(loops[head])):
        body = loops[head]
        start = order.index(head)
        inside = [node for node in order[start:] if node in body]
        outside = [node for node in order[start:] if node not in body]
        order = order[:start] + inside + outside
    return order


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
