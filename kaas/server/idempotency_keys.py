"""Idempotency keys of invocations: the request that each key stands for, and repeats of a request that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from kaas.errors import KaasError, KeyReused
from kaas.server.binding import InvocationDigest, bound, request_digest
from kaas.server.building.uploads import AT_ONCE_BYTES
from kaas.server.replies import failure_of
from kaas.server.reply_tracker import ReplyTracker
from kaas.server.sessions import ClientRun, ClientSession
from kaas.server.state.object_store import ObjectStore
from kaas.wire import protocol


class IdempotencyKeys:
    """The idempotency keys of a server's invocations. Use an object of this class from the pool's event loop only."""

    def __init__(
        self,
        objects: ObjectStore,
        tracker: ReplyTracker,
        start_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Start with no key. `start_task` starts a coroutine in the loop and holds its task."""
        self._objects, self._tracker, self._task = objects, tracker, start_task

    def ask_again(
        self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any], run: ClientRun
    ) -> None:
        """Wait once more for a request with a known key. Its inputs take credit while they are hashed.

        Raises:
            KeyReused, QueueFull
        """
        if run.function != message.function:
            raise _reused(run, f"to function {run.function!r}")
        if run.binding is None and _at_once(frames):
            self._join(session, message, run, request_digest(message, frames))
        else:
            nbytes = sum(map(len, frames))
            session.client.questions.check(session.client, nbytes)
            session.client.questions.take(nbytes)
            joining = self._task(self._join_later(session, message, frames, run))
            joining.add_done_callback(lambda _: session.client.questions.give_back(nbytes))

    async def _join_later(
        self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any], run: ClientRun
    ) -> None:
        """Hash large inputs in another thread, then join."""
        try:
            if run.binding is not None:
                await asyncio.wait([run.binding])
            digest = await asyncio.to_thread(request_digest, message, frames)
            if message.number not in session.waits:  # otherwise the same message came twice
                self._join(session, message, run, digest)
        except KaasError as error:
            session.channel.send(failure_of(message.number, error))

    def _join(self, session: ClientSession, message: protocol.Invoke, run: ClientRun, digest: str) -> None:
        """Wait for a run whose digest is equal.

        Raises:
            KeyReused, QueueFull
        """
        if run.bound is not None and run.bound.request != digest:
            raise _reused(run, "with other inputs, scalars or stored outputs")
        client = session.client
        client.requests.check(client, run.nbytes)
        self._tracker.wait(session, message.number, run, run.nbytes)

    def bind(self, run: ClientRun, message: protocol.Invoke, frames: Sequence[Any], function: str) -> None:
        """Compute the digest of a request with a key, while the device runs the request."""
        contents = [(item.object, self._content(run.client.name, item.object)) for item in message.inputs.values()]
        find = partial(bound, message, frames, function, dict(contents).__getitem__)
        if _at_once(frames):
            run.bound = find()
        else:
            run.binding = self._task(self._bind_later(run, find))

    async def _bind_later(self, run: ClientRun, find: Callable[[], InvocationDigest]) -> None:
        run.bound = await asyncio.to_thread(find)
        run.binding = None

    def _content(self, client: str, name: str) -> str:
        return self._objects.named(client, name).content.hash if name else ""


def _at_once(frames: Sequence[Any]) -> bool:
    """Return True if the loop hashes a message: for small ones, another thread takes longer to wake up."""
    return sum(map(len, frames)) <= AT_ONCE_BYTES


def _reused(run: ClientRun, what: str) -> KeyReused:
    message = f"key {run.key!r} is of another request, {what}: a new request wants a new key"
    return KeyReused(message, key=run.key, function=run.function)
