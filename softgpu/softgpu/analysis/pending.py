"""Which lanes of a warp may wait elsewhere while a block runs: what decides if a branch can be a plain jump."""

from __future__ import annotations

from dataclasses import dataclass

from softgpu.analysis.blocks import EXIT, Block, bits


@dataclass(slots=True)
class Pending:
    """For each block: the blocks at which other lanes may wait while it runs, and whether lanes may have ended."""

    blocks: list[Block]
    waiting: list[int]
    ended: list[bool]

    def turn(self, here: int, target: int) -> tuple[int, int]:
        """Sort key: in which order blocks that have waiting lanes come to run once `here` is done."""
        if target > here:
            return target, 0
        loops = enumerate(self.blocks[here].loops)
        return next((last, 1 + depth) for depth, (head, last) in loops if head == target)

    def is_direct(self, here: int, target: int) -> bool:
        """Whether a branch that all lanes of `here` take may go to `target` at once: nothing waits on the way."""
        if target == EXIT:
            return not self.waiting[here]
        turn = self.turn(here, target)
        return all(self.turn(here, one) >= turn for one in bits(self.waiting[here]))


def pending(blocks: list[Block], divergent: set[int]) -> Pending:
    """`divergent`: the blocks whose lanes may part at the end."""
    state = Pending(blocks, [0] * len(blocks), [False] * len(blocks))
    queue = [0]
    queued = {0}
    visited = set()

    def reach(target: int, waiting: int, ended: bool) -> None:
        waiting &= ~(1 << target)
        if target in visited and not waiting & ~state.waiting[target] and ended <= state.ended[target]:
            return
        visited.add(target)
        state.waiting[target] |= waiting
        state.ended[target] |= ended
        if target not in queued:
            queued.add(target)
            queue.append(target)

    def next_of(here: int, candidates: int, ended: bool) -> None:
        ordered = sorted(bits(candidates), key=lambda one: state.turn(here, one))
        for index, one in enumerate(ordered):
            reach(one, sum(1 << other for other in ordered[index + 1 :]), ended)

    visited.add(0)
    while queue:
        here = queue.pop(0)
        queued.discard(here)
        waiting, ended = state.waiting[here], state.ended[here]
        targets = blocks[here].successors
        if here in divergent:
            ended |= EXIT in targets
            next_of(here, waiting | sum(1 << target for target in targets if target != EXIT), ended)
            continue
        for target in targets:
            if target == EXIT:
                next_of(here, waiting, True)
            elif state.is_direct(here, target):
                reach(target, waiting, ended)
            else:
                next_of(here, waiting | 1 << target, ended)
    return state
