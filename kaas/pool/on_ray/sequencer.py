"""Calls of one program in their order: Ray's messages to an asyncio actor overtake each other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

HOLD_S = 0.25
"""How long a call waits for those made before it. One that was cancelled before it arrived never comes."""
CALLERS = 4096
"""Programs whose place is remembered."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A program. next: the number of the call that goes on at once, as late ones with lower numbers do."""

    next: int = 0
    waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    def advance(self, to: int) -> None:
        self.next = max(self.next, to)
        for number in sorted(
            number for number, turn in self.waiting.items() if number <= self.next and not turn.done()
        ):
            self.waiting[number].set_result(None)


class Sequencer:
    """The callers of one event loop."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Caller] = OrderedDict()

    async def take(self, caller: str, number: int) -> None:
        """Wait until all calls with lower numbers have come, or are given up.

        A caller that then goes on without an await is before all with higher numbers.
        """
        line = self._lines.setdefault(caller, _Caller())
        self._lines.move_to_end(caller)
        if number > line.next:
            loop = asyncio.get_running_loop()
            turn = line.waiting[number] = loop.create_future()
            limit = loop.call_later(HOLD_S, line.advance, number)
            try:
                await turn
            finally:
                limit.cancel()
                del line.waiting[number]
        line.advance(number + 1)
        if len(self._lines) > CALLERS:
            self._lines.popitem(last=False)
