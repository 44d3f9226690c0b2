"""Loops in which lanes wait for other lanes of their warp: the other lanes run first.

Lanes that leave a loop wait behind it for the lanes that stay. If these stay until the others have released a lock or
set a flag, no lane would go on. Such a loop ends by a value that it reads with an atomic or ordered access. The
compiler extends it to the next place where the program itself lets the warp meet, so that the code after the loop runs
before the loop's next round.
"""

from __future__ import annotations

from softgpu.analysis.blocks import Block, Jump, Step, bits
from softgpu.ptx.model import Instruction, Register

_ORDERED = frozenset({"volatile", "relaxed", "acquire", "mmio"})
_MEETING = frozenset({"bar", "barrier", "shfl", "vote", "match", "redux", "activemask", "elect", "ldmatrix", "mma"})
_OTHER_SPACES = frozenset({"global", "shared", "const", "param"})
_OWN_MEMORY = "(local memory)"  # all local memory, as if it were one register


def is_watch(inst: Instruction) -> bool:
    """Return True if the instruction reads memory that another thread may write at this time."""
    base, *modifiers = inst.opcode.split(".")
    return base == "atom" or (base == "ld" and not _ORDERED.isdisjoint(modifiers))


def is_meeting(inst: Instruction) -> bool:
    """Return True if the lanes of a warp must meet at the instruction."""
    return inst.opcode.split(".", 1)[0] in _MEETING


def stretch(blocks: list[Block]) -> None:
    """Extend the loops that watch memory. The blocks are in order, and each meeting begins a block.

    If several loops end together, the first in the text goes on first, so that all of them get their rounds.
    """
    loops = {loop for block in blocks for loop in block.loops}
    ends: dict[tuple[int, int], int] = {}
    for loop in sorted(loops):
        if _watches(blocks, *loop):
            _extend(blocks, loop, ends)
    if not ends:
        return

    def turn(loop: tuple[int, int]) -> tuple[int, bool, int]:
        return ends.get(loop, loop[1]), loop in ends, loop[0] if loop in ends else -loop[0]

    ordered = sorted(loops, key=turn)
    for index, block in enumerate(blocks):
        spans = [(loop[0], ends.get(loop, loop[1])) for loop in ordered]
        block.loops = tuple(span for span in spans if span[0] <= index <= span[1])


def _extend(blocks: list[Block], loop: tuple[int, int], ends: dict[tuple[int, int], int]) -> int:
    """Return the end of a loop that is extended to the next meeting; extend the loop around it too if needed."""
    if loop in ends:
        return ends[loop]
    head, last = loop
    around = blocks[head].loops[blocks[head].loops.index(loop) + 1 :]
    limit = around[0][1] if around else len(blocks) - 1
    while last < limit:
        whole = max((stop for start, stop in blocks[last + 1].loops if start == last + 1), default=last + 1)
        if any(is_meeting(step.inst) for block in blocks[last + 1 : whole + 1] for step in block.steps):
            break
        last = whole
    else:
        last = _extend(blocks, around[0], ends) if around else last
    ends[loop] = last
    return last


def _watches(blocks: list[Block], head: int, last: int) -> bool:
    """Return True if a branch out of the loop, or to its next round, depends on memory that the loop watches."""
    inside = blocks[head : last + 1]
    steps = [step for block in inside for step in block.steps]
    watched = [step for step in steps if is_watch(step.inst)]
    if not watched:
        return False
    copies = _copies(steps) if any(".cas" in step.inst.opcode for step in watched) else set()
    known = _Dependent(inside, head).of([step for step in watched if not _tries_again(step, copies)])
    return any(
        not isinstance(block.end, Jump)
        and block.end.register in known
        and any(_decides(block, index, target, (head, last)) for target in block.successors)
        for index, block in enumerate(inside, head)
    )


def _decides(block: Block, index: int, target: int, loop: tuple[int, int]) -> bool:
    """Return True if a branch to the target leaves the loop, or goes to its next round.

    A branch to the next round of a loop inside decides about that loop only.
    """
    if not loop[0] <= target <= loop[1]:
        return True
    around = next(inner for inner in block.loops if inner[0] <= target <= inner[1])
    return target <= index and around == loop


def _tries_again(step: Step, copies: set[str]) -> bool:
    """Return True for a compare-and-swap with what memory held: one lane succeeds each time, so none waits.

    A value that is made from it is no such one. A lock's word without the lock's bit is in memory only while the lock
    is free.
    """
    if ".cas" not in step.inst.opcode:
        return False
    compared = step.inst.operands[2]
    return isinstance(compared, Register) and compared.name in copies


def _copies(steps: list[Step]) -> set[str]:
    """Return the registers that have, in these steps, only values as they were read by atomic or ordered accesses."""
    sources: dict[str, set[str] | None] = {}  # None: also another value
    for step in steps:
        copied = _copied(step)
        for name in _given(step):
            known = sources.get(name, set())
            if is_watch(step.inst):
                sources[name] = known
            else:
                sources[name] = None if known is None or copied is None else known | {copied}
    readers: dict[str, list[str]] = {}
    for name, read in sources.items():
        for each in read or ():
            readers.setdefault(each, []).append(name)
    others = [name for name in {*readers, *sources} if sources.get(name) is None]
    found = set(others)
    while others:
        more = [name for name in readers.get(others.pop(), ()) if name not in found]
        found.update(more)
        others += more
    return sources.keys() - found


def _copied(step: Step) -> str | None:
    """Return the register, or _OWN_MEMORY, whose value the step copies; None for other steps."""
    inst = step.inst
    if _is_own(inst, "ld"):
        return _OWN_MEMORY
    if inst.opcode.split(".", 1)[0] == "mov" or _is_own(inst, "st"):
        source = inst.operands[1]
        return source.name if isinstance(source, Register) else None
    return None


class _Dependent:
    """Finds the registers of a loop whose values depend on some of its steps, by data or by a branch in it."""

    def __init__(self, inside: list[Block], head: int) -> None:
        self._inside, self._head = inside, head
        self._readers: dict[str, list[Step]] = {}
        self._branches: dict[str, list[Block]] = {}
        for block in inside:
            for step in block.steps:
                for name in _taken(step):
                    self._readers.setdefault(name, []).append(step)
            if not isinstance(block.end, Jump):
                self._branches.setdefault(block.end.register, []).append(block)
        self._reached = [0] * len(inside)  # bit i: block i of the loop follows, or is this one, in the same round
        for index in range(len(inside) - 1, -1, -1):
            self._reached[index] = 1 << index
            for target in inside[index].successors:
                if index < target - head < len(inside):
                    self._reached[index] |= self._reached[target - head]

    def of(self, sources: list[Step]) -> set[str]:
        """Return the registers, with _OWN_MEMORY if local memory depends on the steps."""
        known: set[str] = set()
        chosen = 0  # bit i: a branch that depends on the steps decides whether block i runs
        new = [name for step in sources for name in step.writes]
        while new:
            name = new.pop()
            if name in known:
                continue
            known.add(name)
            new += [given for step in self._readers.get(name, ()) for given in _given(step)]
            for block in self._branches.get(name, ()):
                more = self._chosen_by(block) & ~chosen
                chosen |= more
                new += [given for index in bits(more) for step in self._inside[index].steps for given in _given(step)]
        return known

    def _chosen_by(self, block: Block) -> int:
        """Return the blocks, as bits, that follow after some of a branch's targets and not after all of them."""
        some, every = 0, -1
        for target in block.successors:
            index = target - self._head
            reached = self._reached[index] if 0 <= index < len(self._inside) else 0
            some, every = some | reached, every & reached
        return some & ~every


def _given(step: Step) -> tuple[str, ...]:
    return (*step.writes, _OWN_MEMORY) if _is_own(step.inst, "st") else step.writes


def _taken(step: Step) -> tuple[str, ...]:
    return (*step.reads, _OWN_MEMORY) if _is_own(step.inst, "ld") else step.reads


def _is_own(inst: Instruction, what: str) -> bool:
    """Return True if the instruction may load from, or store to, the thread's local memory.

    Code that is not optimised has its variables there.
    """
    base, *modifiers = inst.opcode.split(".")
    return base == what and _OTHER_SPACES.isdisjoint(m.split("::")[0] for m in modifiers)
