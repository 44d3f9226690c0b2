"""Puts blocks into an order that can run under masks, and finds the loops.

When lanes of a warp diverge, their target blocks run one after the other in this order, each under the mask of the
lanes that wait for it. The order is topological except for the branches back to the head of a loop, and the blocks of a
loop are contiguous. So lanes that left a loop wait behind it, and lanes that diverged meet again as early as possible.
A loop is any set of blocks that reach each other, also with several entries. Its head is the block that a search from
the start reaches first, and its inner loops are the loops that remain without the head (a weak topological order:
Bourdoncle, FMPA 1993).
"""

from __future__ import annotations

from softgpu.analysis.blocks import EXIT, Block, Branch, Jump, Switch
from softgpu.ptx import limits


def in_order(blocks: list[Block]) -> list[Block]:
    """Return the reachable blocks, renumbered, with the blocks of each loop contiguous."""
    order, loops = _arrange(blocks)
    place = {node: index for index, node in enumerate(order)}
    place[EXIT] = EXIT
    around: list[tuple[int, int]] = []  # the loops around the next block, outermost first
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
        while around and around[-1][1] < place[node]:
            around.pop()
        if node in loops:
            around.append((place[node], place[node] + loops[node] - 1))
        block.loops = tuple(around[::-1])
        out.append(block)
    return out


def _arrange(blocks: list[Block]) -> tuple[list[int], dict[int, int]]:
    """Return the order, and for each loop's head the number of blocks in the loop, the head included."""
    order: list[int] = []
    loops: dict[int, int] = {}
    seen = 0
    work: list[int | list[int]] = [[0, *range(1, len(blocks))]]
    start = True
    while work:
        item = work.pop()
        if isinstance(item, int):
            order.append(item)
            continue
        seen += len(item)
        limits.check_loops(seen)
        components = _components(blocks, item, only_first=start)
        start = False
        for component in components:
            head, *rest = component
            if rest:
                work.append(rest)
            if rest or head in blocks[head].successors:
                loops[head] = len(component)
            work.append(head)
    return order, loops


def _components(blocks: list[Block], nodes: list[int], *, only_first: bool) -> list[list[int]]:
    """Return the sets of nodes that reach each other within `nodes`, the last set first.

    The nodes of a set are in the order of a search. The search starts at the first node, and then (unless only_first)
    at each node that it has not reached.
    """
    allowed = set(nodes)
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    out: list[list[int]] = []
    for root in nodes[:1] if only_first else nodes:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        open_nodes.append(root)
        stack = [(root, iter(blocks[root].successors))]
        while stack:
            node, successors = stack[-1]
            for target in successors:
                if target not in allowed:
                    continue
                if target not in number:
                    number[target] = low[target] = len(number)
                    open_nodes.append(target)
                    stack.append((target, iter(blocks[target].successors)))
                    break
                low[node] = min(low[node], number[target])
            else:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == number[node]:
                    component = [open_nodes.pop()]
                    while component[-1] != node:
                        component.append(open_nodes.pop())
                    allowed.difference_update(component)
                    out.append(component[::-1])
    return out
