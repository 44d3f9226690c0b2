"""Loops in which lanes wait for other lanes of their warp: the other lanes run first.

Lanes that leave a loop wait behind it for the lanes that stay. If these stay until the others have released a lock or
set a flag, no lane would go on. Such a loop ends by a value that it reads with an atomic or ordered access. The
compiler extends it to the next place where the program itself lets the warp meet, so that the code after the loop runs
before the loop's next round.
"""

from __future__ import annotations

from softgpu.analysis.blocks import Block, Jump, Step
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
    known = _following(steps, watched)
    known = _following(steps, [step for step in watched if not _tries_again(step, known)])
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


def _tries_again(step: Step, known: set[str]) -> bool:
    """Return True for a compare-and-swap with the previous one's result: one lane succeeds each time, so none waits."""
    if ".cas" not in step.inst.opcode:
        return False
    compared = step.inst.operands[2]
    return isinstance(compared, Register) and compared.name in known


def _following(steps: list[Step], sources: list[Step]) -> set[str]:
    """Return the registers that depend on the results of these steps, with _OWN_MEMORY if local memory does."""
    known = {name for step in sources for name in step.writes}
    grown = bool(known)
    while grown:
        more = {name for step in steps if not known.isdisjoint(_taken(step)) for name in _given(step)}
        grown = not more <= known
        known |= more
    return known


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
