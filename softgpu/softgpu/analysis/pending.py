"""Finds where lanes of a warp may wait while a block runs; this decides if a branch can be a plain jump."""

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
        """Return the sort key of the order in which blocks with waiting lanes run after `here`."""
        if target > here:
            return target, 0
        loops = enumerate(self.blocks[here].loops)
        return next((last, 1 + depth) for depth, (head, last) in loops if head == target)

    def is_direct(self, here: int, target: int) -> bool:
        """Return True if a branch of all lanes of `here` may jump to `target`: no lanes wait on the way."""
        if target == EXIT:
            return not self.waiting[here]
        turn = self.turn(here, target)
        return all(self.turn(here, one) >= turn for one in bits(self.waiting[here]))


def pending(blocks: list[Block], divergent: set[int]) -> Pending:
    """Return where lanes may wait. divergent: the blocks at whose ends lanes may diverge."""
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
