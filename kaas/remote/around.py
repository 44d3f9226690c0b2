"""What a server does around a remote client's request: steps, within the request's time, and outputs that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from kaas.errors import DeadlineExceeded, InvalidRequest
from kaas.remote import wire
from kaas.remote.invocations import given_values
from kaas.remote.making import RemoteFunction
from kaas.remote.sessions import Run
from kaas.remote.steps import Made, Steps
from kaas.remote.values import Values


class Around:
    """Belongs to one event loop."""

    def __init__(self, steps: Steps, values: Values, limit_s: float) -> None:
        """limit_s: of a step whose request has no deadline."""
        self._steps, self._values, self._limit_s = steps, values, limit_s
        self._loop = asyncio.get_running_loop()

    async def inputs(
        self, run: Run, remote: RemoteFunction, message: wire.Invoke, frames: Sequence[Any]
    ) -> tuple[wire.Invoke, Sequence[Any]]:
        """What is asked once the step before has made the inputs out of what came, and in the time that is left.

        Raises:
            KaasError
        """
        if remote.before:
            made = await self._steps.run(remote.before, given_values(message, frames), self._left_s(run))
            inputs = {name: wire.Input(frame=frame) for frame, name in enumerate(made, 1)}
            message = msgspec.structs.replace(message, inputs=inputs)
            frames = [b"", *(each.data for each in made.values())]
        if run.ends_s is not None:
            message = msgspec.structs.replace(message, deadline_s=self._left_s(run))
        return message, frames

    async def outputs(self, run: Run, remote: RemoteFunction) -> None:
        """Have the step after make others out of them, and store those that stay.

        Raises:
            KaasError
        """
        found = {
            name: Made(dtype, shape, frame)
            for name, (dtype, shape), frame in zip(remote.outputs, remote.function.outputs, run.frames, strict=True)
        }
        if remote.after:
            values = {name: each.data for name, each in found.items()}
            found = await self._steps.run(remote.after, values, self._left_s(run))
        for name in run.store.keys() - found.keys():
            raise InvalidRequest(f"step {remote.after!r} has made no output {name!r} to store", buffer=name)
        come = {}
        for name, (dtype, shape, data) in found.items():
            if name in run.store:
                await self._values.store(run.client.name, run.store[name], dtype, shape, data)
            else:
                come[name] = data
        run.outputs, run.frames, run.nbytes = tuple(come), list(come.values()), sum(map(len, come.values()))

    def _left_s(self, run: Run) -> float:
        """
        Raises:
            DeadlineExceeded
        """
        if run.ends_s is None:
            return self._limit_s
        left_s = run.ends_s - self._loop.time()
        if left_s <= 0:
            raise DeadlineExceeded(f"{run.label!r} did not end in time: a step before or after it has taken that",
                                   task=run.label)  # fmt: skip
        return min(left_s, self._limit_s)
