"""Restores the order of a program's calls, since Ray's messages to an asyncio actor overtake each other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

HOLD_S = 0.25
"""Longest wait of a call for earlier calls. An earlier call may have been cancelled before it arrived."""
CALLERS = 4096
"""Number of programs whose position is kept."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A program. next: calls with this number or a lower one go on at once."""

    next: int = 0
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    def advance(self, to: int) -> None:
        """Let the waiting calls up to this number go on."""
        self.next = max(self.next, to)
        for number in sorted(
            number for number, turn in self.waiting.items() if number <= self.next and not turn.done()
        ):
            self.waiting[number].set_result(None)


class Sequencer:
    """The order of calls of all programs. Belongs to one event loop."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Caller] = OrderedDict()

    async def take(self, caller: str, number: int) -> None:
        """Wait until all calls with lower numbers have come, or HOLD_S is over.

        A call that then goes on without an await is before all calls with higher numbers.
        """
        program = self._callers.setdefault(caller, _Caller())
        self._callers.move_to_end(caller)
        if number > program.next:
            loop = asyncio.get_running_loop()
            turn = program.waiting[number] = loop.create_future()
            limit = loop.call_later(HOLD_S, program.advance, number)
            try:
                await turn
            finally:
                limit.cancel()
                del program.waiting[number]
        program.advance(number + 1)
        if len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
