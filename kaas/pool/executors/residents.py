"""The outputs that stay on devices, from the invocation until their arrays are in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

MOST_LEFT = 4096
"""Outputs that stay on the devices at most, all together. Each has a pending call of the pool, and what it was made of
stays alive."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of an output, instead of its value."""

    key: bytes
    device: int


@dataclass(slots=True, eq=False)
class _Output:
    """
    Fields:
        made_by: what its executor was asked, None once that is of no use.
        value: the array, or what replaces it. name: of the reference by which others wait for it.
    """

    made_by: Any
    value: asyncio.Future[Any]
    worker: int | None = None
    name: str | None = None


class Residents:
    """All outputs that stay on devices.

    Of one event loop. Unknown names are ignored: no program waits for them any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outputs: dict[bytes, _Output] = {}
        self._left: dict[bytes, None] = {}  # those that no program has asked for, the oldest first
        self._alive: set[int] = set()

    def __len__(self) -> int:
        return len(self._outputs)

    # --- one output

    def expect(self, key: bytes, made_by: Any) -> None:
        """Take in that an executor is asked to keep an output, perhaps one that it kept in vain before."""
        self._outputs[key] = _Output(made_by, self._loop.create_future())

    def placed(self, key: bytes, worker: int) -> None:
        """Take in that a worker has an output."""
        output = self._outputs.get(key)
        if output is None:
            return
        output.worker = worker
        if worker not in self._alive:
            self.lost(key)
        elif not output.value.done():
            self._left[key] = None

    def written(self, key: bytes, value: Any) -> None:
        """Take in that an output's array has come back."""
        output = self._outputs.get(key)
        if output is not None and not output.value.done():
            self._left.pop(key, None)
            output.value.set_result(value)
            output.made_by = None

    def lost(self, key: bytes) -> None:
        """Take in that an output's array cannot come back."""
        output = self._outputs.get(key)
        if output is not None and not output.value.done():
            self.written(key, output.made_by.lost(key))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Take in that an invocation gave no values."""
        for key in keys:
            self._outputs.pop(key, None)
            self._left.pop(key, None)

    async def value(self, key: bytes) -> Any:
        """Return the array, or what replaces it, once it is there."""
        output = self._outputs[key]
        try:
            return await output.value
        finally:
            if self._outputs.get(key) is output:
                del self._outputs[key]

    def named(self, key: bytes, name: str) -> None:
        """Take in that a program can name an output from now on."""
        if key in self._outputs:
            self._outputs[key].name = name

    def ask(self, key: bytes) -> int | None:
        """Take in that a program wants an output; return the worker that has to write it back, if one has."""
        output = self._outputs.get(key)
        if output is None or output.value.done():
            return None
        self._left.pop(key, None)
        return output.worker

    async def come(self, keys: Iterable[bytes]) -> None:
        """Wait until each of these has come back, is lost, or is wanted by no program."""
        values = [self._outputs[key].value for key in keys if key in self._outputs]
        if values:
            await asyncio.wait(values)

    def surplus(self) -> bytes | None:
        """Return the oldest output if there are too many that no program has asked for."""
        return next(iter(self._left)) if len(self._left) > MOST_LEFT else None

    def nameless(self, names: Container[str]) -> dict[int, list[bytes]]:
        """Forget the outputs that no program can name any more; return them by worker.

        names: those that a program has.
        """
        found: dict[int, list[bytes]] = {}
        for key in list(self._left):
            output = self._outputs[key]
            if output.worker is not None and output.name is not None and output.name not in names:
                found.setdefault(output.worker, []).append(key)
                self.written(key, None)
        return found

    # --- workers

    def worker_came(self, worker: int) -> None:
        self._alive.add(worker)

    async def rescue(self, worker: int, write_back: Callable[[int, list[bytes]], Awaitable[None]]) -> None:
        """Have a worker write back all that only it has, since it will end; done when it is here, or lost."""
        there = {key: out.value for key, out in self._outputs.items() if out.worker == worker and not out.value.done()}
        if there:
            await write_back(worker, list(there))
            await asyncio.wait(there.values())

    def worker_left(self, worker: int) -> None:
        """Take in that a worker ended: outputs that only it had are lost."""
        self._alive.discard(worker)
        for key in [key for key, output in self._outputs.items() if output.worker == worker]:
            self.lost(key)
