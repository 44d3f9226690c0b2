"""Idempotency keys of invocations: the request that each key stands for, and repeats of a request that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from kaas.errors import KeyReused
from kaas.server.binding import InvocationDigest, bound, request_digest
from kaas.server.building.uploads import AT_ONCE_BYTES
from kaas.server.replies import failure_of
from kaas.server.reply_tracker import ReplyTracker
from kaas.server.sessions import ClientRun, ClientSession
from kaas.server.state.object_store import ObjectStore
from kaas.wire import protocol
from kaas.wire.rpc.server_half import Wait


class IdempotencyKeys:
    """The idempotency keys of a server's invocations. Use an object of this class from the pool's event loop only."""

    def __init__(
        self,
        objects: ObjectStore,
        tracker: ReplyTracker,
        start_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        begin: Callable[[ClientSession, protocol.Invoke, Sequence[Any]], None],
    ) -> None:
        """Start with no key.

        Args:
            start_task: starts a coroutine in the loop and holds its task.
            begin: begins a request, or raises a KaasError.
        """
        self._objects, self._tracker, self._task, self._begin = objects, tracker, start_task, begin

    def ask_again(
        self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any], run: ClientRun
    ) -> None:
        """Wait once more for a request with a known key.

        The repeat is open as any other, and its inputs take credit until they are hashed, even if it is cancelled
        before.

        Raises:
            KeyReused, QueueFull
        """
        _check_function(run, message)
        if run.binding is None and _at_once(frames):
            self._join(session, message, run, request_digest(message, frames))
        else:
            client, nbytes = session.client, sum(map(len, frames))
            client.questions.check(client, nbytes)
            client.requests.check(client, 0)
            client.questions.take(nbytes)
            wait = self._tracker.seek(session, message)
            joining = self._task(self._join_later(session, message, frames, wait))
            joining.add_done_callback(lambda _: client.questions.give_back(nbytes))

    async def _join_later(
        self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any], wait: Wait
    ) -> None:
        """Hash large inputs in another thread, then join the request that has the key by then, or begin one."""
        digest = await asyncio.to_thread(request_digest, message, frames)
        while (run := session.client.known(message.key)) is not None and run.binding is not None:
            await asyncio.wait([run.binding])
        if not self._tracker.withdraw(wait):
            return
        try:
            if run is None:  # the request that had the key was cancelled, or is no longer kept
                self._begin(session, message, frames)
            else:
                self._join(session, message, run, digest)
        except Exception as error:  # noqa: BLE001 - any error is the reply
            session.channel.send(failure_of(message.number, error))

    def _join(self, session: ClientSession, message: protocol.Invoke, run: ClientRun, digest: str) -> None:
        """Wait for a run of the same function whose digest is equal.

        Raises:
            KeyReused, QueueFull
        """
        _check_function(run, message)  # while the inputs were hashed, another run may have got the key
        if run.bound is not None and run.bound.request != digest:
            raise _reused(run, "with other inputs, scalars or stored outputs")
        client = session.client
        client.requests.check(client, run.nbytes)
        self._tracker.wait(session, message.number, run, run.nbytes)

    def contents(self, client: str, message: protocol.Invoke) -> dict[str, str]:
        """Return the hashes of the objects that a message names, by name.

        Raises:
            UnknownObject
        """
        named, inputs = self._objects.named, message.inputs.values()
        return {item.object: named(client, item.object).content.hash for item in inputs if item.object}

    def bind(
        self,
        run: ClientRun,
        message: protocol.Invoke,
        frames: Sequence[Any],
        function: str,
        contents: Mapping[str, str],
    ) -> None:
        """Compute the digest of a request with a key, while the device runs the request.

        Args:
            run: the request's run.
            message: the request.
            frames: of the message, with the header.
            function: key of the function.
            contents: hashes of the request's objects, by name.
        """
        find = partial(bound, message, frames, function, contents.__getitem__)
        if _at_once(frames):
            run.bound = find()
        else:
            run.binding = self._task(self._bind_later(run, find))

    async def _bind_later(self, run: ClientRun, find: Callable[[], InvocationDigest]) -> None:
        run.bound = await asyncio.to_thread(find)
        run.binding = None


def _at_once(frames: Sequence[Any]) -> bool:
    """Return True if the loop hashes a message: for small ones, another thread takes longer to wake up."""
    return sum(map(len, frames)) <= AT_ONCE_BYTES


def _check_function(run: ClientRun, message: protocol.Invoke) -> None:
    """Raise if a run is of another function than a message with its key.

    Raises:
        KeyReused
    """
    if run.function != message.function:
        raise _reused(run, f"to function {run.function!r}")


def _reused(run: ClientRun, what: str) -> KeyReused:
    message = f"key {run.key!r} is of another request, {what}: a new request wants a new key"
    return KeyReused(message, key=run.key, function=run.function)
