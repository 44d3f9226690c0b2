"""Answers of remote clients' requests, from their being there until they are received, and kept for who asks again."""

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
    """Belongs to the pool's event loop."""

    def __init__(
        self,
        meter: Meter,
        answers: DurableReplies,
        closed: Callable[[], None],
        ended: Callable[[ClientRun], None] = lambda _: None,
    ) -> None:
        """closed: is called when something is open no more. ended: hears of each request that has its answer now."""
        self._meter, self._answers, self._closed, self._ended = meter, answers, closed, ended
        self._half: ServerHalf[ClientRun] = ServerHalf()

    def wait(self, session: ClientSession, number: int, run: ClientRun, nbytes: int) -> None:
        """A program waits for a run, or for its answer. nbytes: of its client's credit that it takes."""
        wait = self._half.wait(session, number, run, nbytes)
        if wait is not None:
            self.send(wait)

    def end(self, run: ClientRun) -> None:
        """There is an answer: it goes out to all who wait and can be reached, then is kept for who asks again."""
        self._ended(run)
        run.request, run.remote, run.task = None, None, None
        waits = self._half.ended(run, monotonic())
        for wait in waits:
            if not wait.session.lost:
                self.send(wait)
        if run.stored_bytes:
            run.client.storing.give_back(run.stored_bytes)
        self._half.settle(run, waits)
        self._closed()

    def send(self, wait: Wait) -> None:
        """On its program's newest connection, unless that has the answer already."""
        channel: ReplyChannel = wait.session.channel
        run: ClientRun = wait.run
        if wait.sent is channel:
            return
        if run.failure is None:
            sent = channel.send(protocol.Result(wait.number, run.outputs, run.trace), run.frames)
        else:
            sent = channel.send(_numbered(run.failure, wait.number, run.trace))
        self._half.sent(wait, through=sent)
        if sent and run.bound is not None:
            self._meter.delivered(run.client.name, run.bound.charge)

    def greeted(self, session: ClientSession, channel: ReplyChannel) -> Callable[[], None]:
        """A program has a connection. Return what sends on it all that has not been received."""
        waits = self._half.greeted(session, channel)

        def send_again() -> None:
            for wait in waits:
                self.send(wait)

        return send_again

    def received(self, session: ClientSession, numbers: Iterable[int]) -> None:
        """A program has these answers. A number that makes no sense means nothing: it may come twice."""
        for run in self._half.received(session, numbers):
            if run.key and run.final:  # else it may have been asked again since
                if run.charge_key:
                    self._meter.received(run.client.name, run.charge_key)
                if run.key.startswith(session.id) and self._half.kept(run):  # no other program asks by it
                    run.client.finished.forget(run.key)
            self._closed()

    def cancel(self, session: ClientSession, number: int) -> None:
        """What others wait for too goes on."""
        failure = failure_of(number, Cancelled(f"request {number} was cancelled"))
        wait = session.waits.get(number)
        if wait is None:
            return
        asked: ClientRun = wait.run
        cancelled = ClientRun(session.client, "", asked.asked, asked.label, (), 0, 0, done=True, failure=failure)
        waiting, alone = self._half.cancel(session, number, cancelled)
        if waiting is not None:
            self.send(waiting)
        if alone is not None:
            _stop(alone)

    def lost(self, session: ClientSession) -> None:
        """It has no connection. Answers that it finds again by their keys take none of its client's credit."""
        self._half.lost(session)
        self._closed()

    def forget(self, session: ClientSession) -> None:
        """A program has ended."""
        for run in self._half.forget(session):
            _stop(run)
        self._closed()

    def close(self, sessions: Iterable[ClientSession]) -> None:
        """These programs are told that what they wait for does not come. What runs on is nobody's."""
        stopped = PoolStopped(ENDED)
        for session in sessions:
            for wait in session.waits.values():
                if not wait.run.done:
                    session.channel.send(failure_of(wait.number, stopped))

    # --- what is kept

    def remember(self, client: ConnectedClient, answer: DurableReply) -> None:
        """An answer of an earlier life."""
        nbytes = sum(map(len, answer.frames))
        run = ClientRun(
            client, answer.key, answer.asked, answer.label, answer.outputs, 0, nbytes, done=True, lasting=True
        )
        run.frames = answer.frames
        if answer.request:
            run.bound = InvocationDigest(answer.request, answer.charge)
        client.finished.add(answer.key, run, run.kept_bytes, monotonic())

    def forgotten(self, key: str, run: ClientRun) -> None:
        """Its answer is not kept any more."""
        if run.lasting:
            self._answers.remove(run.client.name, key)


def _numbered(failure: protocol.Failure, number: int, trace: str) -> protocol.Failure:
    return protocol.Failure(number, failure.error, failure.message, failure.fields, failure.retry_s, trace)


def _stop(run: ClientRun) -> None:
    """Nobody waits for a run: it ends."""
    if run.request is not None:
        run.request.answer.cancel()
    elif run.task is not None:
        run.task.cancel()  # which takes a while: a call with its key begins another run
        run.client.runs.pop(run.key, None)
