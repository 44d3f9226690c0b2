"""The outputs that stay on devices, from the invocation until their arrays are in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

MOST_LEFT = 4096
"""Limit of the outputs that stay on all devices. Each of them has a pending call of the pool, and keeps its inputs
alive."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of an output that stays on a device. It stands for the value."""

    key: bytes
    device: int


@dataclass(slots=True, eq=False)
class _Output:
    """An output that stays on a device.

    Fields:
        made_by: the payload of its invocation, None once the value has come.
        value: the array, or the `Lost` that replaces it. name: of the reference by which programs wait for the value.
    """

    made_by: Any
    value: asyncio.Future[Any]
    worker: int | None = None
    name: str | None = None


class Residents:
    """All outputs that stay on devices.

    Belongs to one event loop. Unknown keys are ignored: no program waits for their outputs any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outputs: dict[bytes, _Output] = {}
        self._left: dict[bytes, None] = {}  # outputs that no program has asked for, oldest first
        self._alive: set[int] = set()

    def __len__(self) -> int:
        return len(self._outputs)

    # --- one output

    def expect(self, key: bytes, made_by: Any) -> None:
        """Add an output that an executor is going to keep. It may replace an output of this key that was lost."""
        self._outputs[key] = _Output(made_by, self._loop.create_future())

    def placed(self, key: bytes, worker: int) -> None:
        """Note that a worker has an output."""
        output = self._outputs.get(key)
        if output is None:
            return
        output.worker = worker
        if worker not in self._alive:
            self.lost(key)
        elif not output.value.done():
            self._left[key] = None

    def written(self, key: bytes, value: Any) -> None:
        """Give an output its array, which has come back."""
        output = self._outputs.get(key)
        if output is not None and not output.value.done():
            self._left.pop(key, None)
            output.value.set_result(value)
            output.made_by = None

    def lost(self, key: bytes) -> None:
        """Give an output the invocation that makes it again, since its array is lost."""
        output = self._outputs.get(key)
        if output is not None and not output.value.done():
            self.written(key, output.made_by.lost(key))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove the outputs of an invocation that gave no values."""
        for key in keys:
            self._outputs.pop(key, None)
            self._left.pop(key, None)

    async def value(self, key: bytes) -> Any:
        """Wait for an output; return its array, or the `Lost` that replaces it."""
        output = self._outputs[key]
        try:
            return await output.value
        finally:
            if self._outputs.get(key) is output:
                del self._outputs[key]

    def named(self, key: bytes, name: str) -> None:
        """Note the name by which a program can ask for an output from now on."""
        if key in self._outputs:
            self._outputs[key].name = name

    def ask(self, key: bytes) -> int | None:
        """Note that a program wants an output. Return the worker that must write it back, or None."""
        output = self._outputs.get(key)
        if output is None or output.value.done():
            return None
        self._left.pop(key, None)
        return output.worker

    async def come(self, keys: Iterable[bytes]) -> None:
        """Wait until each of these outputs has come back, is lost, or is no longer wanted."""
        values = [self._outputs[key].value for key in keys if key in self._outputs]
        if values:
            await asyncio.wait(values)

    def surplus(self) -> bytes | None:
        """Return the oldest output that no program has asked for, if there are more than MOST_LEFT of them."""
        return next(iter(self._left)) if len(self._left) > MOST_LEFT else None

    def nameless(self, names: Container[str]) -> dict[int, list[bytes]]:
        """Forget the outputs that no program can name any more; return them by worker.

        names: the names that programs have.
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
        """Note that a worker runs."""
        self._alive.add(worker)

    async def rescue(self, worker: int, write_back: Callable[[int, list[bytes]], Awaitable[None]]) -> None:
        """Let a worker that is going to end write back its outputs; wait until they have come, or are lost."""
        values = {key: out.value for key, out in self._outputs.items() if out.worker == worker and not out.value.done()}
        if values:
            await write_back(worker, list(values))
            await asyncio.wait(values.values())

    def worker_left(self, worker: int) -> None:
        """Note that a worker ended: the outputs that only this worker had are lost."""
        self._alive.discard(worker)
        for key in [key for key, output in self._outputs.items() if output.worker == worker]:
            self.lost(key)
