"""Puts blocks into an order that can run under masks, and finds the loops.

When lanes of a warp part, the blocks they go to run one after the other in this order, each under the mask of the lanes
that wait for it. The order is topological but for the branches back to the head of a loop, and the blocks of a loop are
contiguous, so lanes that left a loop wait behind it and lanes that part meet again as early as they can.
"""

from __future__ import annotations

from kaas.softgpu.analysis.blocks import EXIT, Block, Branch, Jump, Switch


def in_order(blocks: list[Block]) -> list[Block]:
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
