"""Replies to remote clients: sent until they are received, and kept for repeats of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from kaas.errors import Cancelled, PoolStopped
from kaas.server.binding import InvocationDigest
from kaas.server.replies import failure_of
from kaas.server.sessions import ClientRun, ClientSession, ConnectedClient, ReplyChannel
from kaas.server.state.durable_replies import DurableReplies, DurableReply
from kaas.server.usage.metering import Meter
from kaas.wire import protocol
from kaas.wire.rpc.server_half import ServerHalf, Wait

ENDED = "the server has ended"


class ReplyTracker:
    """Tracks replies until they are received. Use an object of this class from the pool's event loop only."""

    def __init__(
        self,
        meter: Meter,
        answers: DurableReplies,
        closed: Callable[[], None],
        ended: Callable[[ClientRun], None] = lambda _: None,
    ) -> None:
        """closed: called whenever a request is no longer open. ended: called with each request that has a reply."""
        self._meter, self._answers, self.closed, self._ended = meter, answers, closed, ended
        self._half: ServerHalf[ClientRun] = ServerHalf()

    def wait(self, session: ClientSession, number: int, run: ClientRun, nbytes: int) -> None:
        """Have a program wait for the reply of a run. nbytes: credit of its client that the wait takes."""
        wait = self._half.wait(session, number, run, nbytes)
        if wait is not None:
            self.send(wait)

    def seek(self, session: ClientSession, message: protocol.Invoke) -> Wait:
        """Have a program wait for a run that is still sought: the request is open, and can be cancelled."""
        sought = ClientRun(session.client, "", message.function, "", (), 0)
        self.wait(session, message.number, sought, 0)
        return session.waits[message.number]

    def withdraw(self, wait: Wait) -> bool:
        """Close a wait of `seek`, as the run is found or the request refused. Return False if there is no such wait:
        the request was cancelled, or its program is forgotten."""
        withdrawn = self._half.withdraw(wait)
        self.closed()
        return withdrawn

    def end(self, run: ClientRun) -> None:
        """Send the reply of a run to all waiting programs that are connected, and keep it for repeats."""
        waits = self._half.ended(run)
        for wait in waits:
            if not wait.session.lost:
                self.send(wait)
        if run.stored_bytes:
            run.client.storing.give_back(run.stored_bytes)
        self._half.settle(run, waits, monotonic())
        self._ended(run)
        run.request, run.remote, run.task = None, None, None
        self.closed()

    def send(self, wait: Wait) -> None:
        """Send a reply on its program's newest connection, unless it was sent there already."""
        channel: ReplyChannel = wait.session.channel
        run: ClientRun = wait.run
        if wait.sent is channel:
            return
        if run.failure is None:
            sent = channel.send(protocol.Result(wait.number, run.outputs, run.trace), run.frames)
        else:
            sent = channel.send(_numbered(run.failure, wait.number, run.trace))
        self._half.sent(wait, through=sent)
        if sent and run.bound is not None and run.final:  # else its client asks again, for the same charge
            self._meter.delivered(run.client.name, run.bound.charge)

    def greeted(self, session: ClientSession, channel: ReplyChannel) -> Callable[[], None]:
        """Bind a program to a connection. Return a function that sends all replies that were not received."""
        waits = self._half.greeted(session, channel)

        def send_again() -> None:
            for wait in waits:
                self.send(wait)

        return send_again

    def received(self, session: ClientSession, numbers: Iterable[int]) -> None:
        """Note that a program has these replies. An unknown number is ignored, because a number may come twice."""
        for run in self._half.received(session, numbers):
            if run.key and run.final:  # otherwise the program may have repeated it
                if run.charge_key:
                    self._meter.received(run.client.name, run.charge_key)
                if run.key.startswith(session.id) and self._half.kept(run):  # no other program uses this key
                    run.client.finished.forget(run.key)
            self.closed()

    def cancel(self, session: ClientSession, number: int) -> None:
        """Cancel a request of a program. A run for which other programs wait goes on, and so does a committed one."""
        wait = session.waits.get(number)
        if wait is None:
            return
        failure = failure_of(number, Cancelled(f"request {number} was cancelled"))
        former: ClientRun = wait.run
        cancelled = _cancelled(session.client, former.function, former.label, failure)
        waiting, alone = self._half.cancel(session, number, cancelled)
        if waiting is not None:
            self.send(waiting)
        if alone is not None:
            alone.cancelled = True
            _stop(alone)

    def lost(self, session: ClientSession) -> None:
        """Note that a program has no connection. Its replies with a key take no credit meanwhile."""
        self._half.lost(session)
        self.closed()

    def forget(self, session: ClientSession) -> None:
        """Forget a program. Its runs stop unless other programs wait for them."""
        for run in self._half.forget(session):
            _stop(run)
        self.closed()

    def close(self, sessions: Iterable[ClientSession]) -> None:
        """Fail all waits of these programs. Runs that continue have no receiver."""
        stopped = PoolStopped(ENDED)
        for session in sessions:
            for wait in session.waits.values():
                if not wait.run.done:
                    session.channel.send(failure_of(wait.number, stopped))

    # --- kept replies

    def remember(self, client: ConnectedClient, reply: DurableReply) -> None:
        """Keep a durable reply of an earlier epoch."""
        nbytes = sum(map(len, reply.frames))
        run = ClientRun(
            client, reply.key, reply.function, reply.label, reply.outputs, 0, nbytes=nbytes, done=True, durable=True
        )
        run.frames = reply.frames
        if reply.request:
            run.bound = InvocationDigest(reply.request, reply.charge)
        client.finished.add(reply.key, run, run.kept_bytes, monotonic())

    def forgotten(self, key: str, run: ClientRun) -> None:
        """Remove the durable reply of a run that is no longer kept."""
        if run.durable:
            self._answers.remove(run.client.name, key)


def _numbered(failure: protocol.Failure, number: int, trace: str) -> protocol.Failure:
    return protocol.Failure(number, failure.error, failure.message, failure.fields, failure.retry_s, trace)


def _cancelled(client: ConnectedClient, function: str, label: str, failure: protocol.Failure) -> ClientRun:
    """Return the run of a request that was cancelled: it has ended, with this failure."""
    return ClientRun(client, "", function, label, (), 0, done=True, failure=failure)


def _stop(run: ClientRun) -> None:
    """Stop a run for which no program waits. It may end later; a call with its key begins another run at once."""
    if run.client.runs.get(run.key) is run:
        del run.client.runs[run.key]
    if run.request is not None:
        run.request.answer.cancel()
    elif run.task is not None:
        run.task.cancel()
