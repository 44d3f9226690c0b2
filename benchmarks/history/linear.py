"""Whether the operations on one object could have happened one after the other, each between its begin and its end.

The method is Lowe's just-in-time linearization (Testing for linearizability, 2017): events are followed in time, with
all states that the object may have then. An operation without an end may happen at any time after its begin, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

State = int | None
"""Of an object: its number, None if there is none."""
World = tuple[State, frozenset[int]]
"""A state, and which of the open operations with an end have happened already."""
Worlds = dict[World, list[frozenset[int]]]
"""By world, the sets of operations without an end that have happened. A set that contains another one is left out: the
other one leads to all that it leads to, since these operations need not happen."""
NEVER_S = float("inf")


class Step(NamedTuple):
    """An operation.

    Fields:
        name: for people. begins_s, ends_s: its effect is between them; ends_s is NEVER_S if it has no answer. after:
            returns the state after it, or raises ImpossibleError where its answer does not fit the state before.
    """

    name: str
    begins_s: float
    ends_s: float
    after: Callable[[State], State]


class ImpossibleError(Exception):
    """An operation's answer does not fit a state."""


def first_misfit(steps: Sequence[Step]) -> Step | None:
    """Return the first operation whose answer fits no order; None if there is none. At first there is no object."""
    moments = [(step.begins_s, 0, number) for number, step in enumerate(steps)]
    moments += [(step.ends_s, 1, number) for number, step in enumerate(steps) if step.ends_s != NEVER_S]
    worlds: Worlds = {(None, frozenset()): [frozenset()]}
    open_steps: dict[int, Step] = {}
    for _, is_end, number in sorted(moments):
        if not is_end:
            open_steps[number] = steps[number]
            continue
        reached = _reached(worlds, open_steps)
        worlds = {}
        for (state, done), sets in reached.items():
            if number in done:
                for undue in sets:
                    _add(worlds, (state, done - {number}), undue)
        if not worlds:
            return steps[number]
        del open_steps[number]
    return None


def _reached(worlds: Worlds, open_steps: dict[int, Step]) -> Worlds:
    """Return the worlds after any of the open operations."""
    reached: Worlds = {}
    left = [(world, undue) for world, sets in worlds.items() for undue in sets]
    for world, undue in left:  # it grows meanwhile
        if not _add(reached, world, undue):
            continue
        state, done = world
        for number in open_steps.keys() - done - undue:
            step = open_steps[number]
            with suppress(ImpossibleError):
                after = step.after(state)
                if step.ends_s == NEVER_S:
                    left.append(((after, done), undue | {number}))
                else:
                    left.append(((after, done | {number}), undue))
    return reached


def _add(worlds: Worlds, world: World, undue: frozenset[int]) -> bool:
    """Add a set of operations to a world. Return True unless there is one that leads to as much."""
    sets = worlds.setdefault(world, [])
    if any(other <= undue for other in sets):
        return False
    sets[:] = [other for other in sets if not undue <= other]
    sets.append(undue)
    return True
