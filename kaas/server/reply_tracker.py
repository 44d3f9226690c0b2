"""Answers of remote clients' requests, from their being there until they are received, and kept for who asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from kaas.errors import Cancelled, PoolStopped
from kaas.server.binding import InvocationDigest
from kaas.server.replies import failure_of
from kaas.server.sessions import ClientRun, ClientSession, ConnectedClient, PendingReply
from kaas.server.state.durable_replies import DurableReplies, DurableReply
from kaas.server.usage.metering import Meter
from kaas.wire import protocol

ENTRY_BYTES, OUTPUT_BYTES, FAILURE_BYTES = 1 << 10, 64, 32 << 10
"""What an answer that is kept takes beside its bytes, and each of its outputs does; one that is a failure in all."""
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

    def wait(self, session: ClientSession, number: int, run: ClientRun, nbytes: int) -> None:
        """A program waits for a run, or for its answer. nbytes: of its client's credit that it takes."""
        wait = session.waits[number] = PendingReply(session, number, run, nbytes)
        session.client.requests.take(nbytes)
        if run.done:
            self.send(wait)
        else:
            run.waits.append(wait)

    def end(self, run: ClientRun) -> None:
        """There is an answer: it goes out to all who wait and can be reached, then is kept for who asks again."""
        self._ended(run)
        run.done, run.request, run.remote, run.task = True, None, None, None
        waits, run.waits = run.waits, []
        for wait in waits:
            if wait.session.lost_s is None:
                self.send(wait)
        client, key = run.client, run.key
        if run.stored_bytes:
            client.storing.give_back(run.stored_bytes)
        if key and client.runs.get(key) is run:
            del client.runs[key]
            if (waits or run.lasting) and _final(run):
                nbytes = FAILURE_BYTES if run.failure is not None else kept_bytes(run)
                client.finished.add(key, run, nbytes, monotonic())
        for wait in waits:
            client.requests.nbytes += run.nbytes - wait.nbytes
            wait.nbytes = run.nbytes
            if wait.session.lost_s is not None and _kept(run):
                self._leave(wait)  # it will ask again

    def send(self, wait: PendingReply) -> None:
        """On its program's newest connection, unless that has the answer already."""
        session, run = wait.session, wait.run
        if wait.sent is session.channel:
            return
        if run.failure is None:
            sent = session.channel.send(protocol.Result(wait.number, run.outputs, run.trace), run.frames)
        else:
            sent = session.channel.send(_numbered(run.failure, wait.number, run.trace))
        wait.sent = session.channel if sent else None
        if sent and run.bound is not None:
            self._meter.delivered(run.client.name, run.bound.charge)

    def send_again(self, session: ClientSession) -> None:
        """On a new connection: all that has not been received."""
        for wait in session.waits.values():
            if wait.run.done:
                self.send(wait)

    def received(self, session: ClientSession, numbers: Iterable[int]) -> None:
        """What makes no sense means nothing: it may come twice."""
        for number in numbers:
            wait = session.waits.get(number)
            if wait is not None and wait.run.done:
                client, run = session.client, wait.run
                if run.key and _final(run):  # else it may have been asked again since
                    if run.charge_key:
                        self._meter.received(client.name, run.charge_key)
                    if run.key.startswith(session.id) and _kept(run):  # nobody else asks by it, nor it again
                        client.finished.forget(run.key)
                self._leave(wait)

    def cancel(self, session: ClientSession, number: int) -> None:
        """What others wait for too goes on."""
        wait = session.waits.get(number)
        if wait is None or wait.run.done:
            return
        shared, client = wait.run, session.client
        shared.waits.remove(wait)
        failure = failure_of(number, Cancelled(f"request {number} was cancelled"))
        wait.run = ClientRun(client, "", shared.asked, shared.label, (), 0, 0, done=True, failure=failure)
        client.requests.nbytes -= wait.nbytes
        wait.nbytes = 0
        self.send(wait)
        _leave_alone(shared)

    def lost(self, session: ClientSession) -> None:
        """It has no connection. Answers that it finds again by their keys take none of its client's credit."""
        for wait in [wait for wait in session.waits.values() if _kept(wait.run)]:
            self._leave(wait)

    def forget(self, session: ClientSession) -> None:
        """A program has ended."""
        for wait in list(session.waits.values()):
            self._leave(wait)

    def _leave(self, wait: PendingReply) -> None:
        session, run = wait.session, wait.run
        del session.waits[wait.number]
        session.client.requests.give_back(wait.nbytes)
        if not run.done:
            run.waits.remove(wait)
            _leave_alone(run)
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
        client.finished.add(answer.key, run, kept_bytes(run), monotonic())

    def forgotten(self, key: str, run: ClientRun) -> None:
        """Its answer is not kept any more."""
        if run.lasting:
            self._answers.remove(run.client.name, key)


def kept_bytes(run: ClientRun) -> int:
    """What it takes while its answer, a result, is kept."""
    return ENTRY_BYTES + OUTPUT_BYTES * len(run.frames) + run.nbytes


def _final(run: ClientRun) -> bool:
    """Whether its answer is also that to who asks again by its key."""
    return run.failure is None or run.failure.retry_s is None


def _kept(run: ClientRun) -> bool:
    """Whether who asks again finds its answer by its key."""
    return bool(run.key) and run.client.finished.get(run.key) is run


def _numbered(failure: protocol.Failure, number: int, trace: str) -> protocol.Failure:
    return protocol.Failure(number, failure.error, failure.message, failure.fields, failure.retry_s, trace)


def _leave_alone(run: ClientRun) -> None:
    """If nobody waits for it, it ends."""
    if run.waits:
        return
    if run.request is not None:
        run.request.answer.cancel()
    elif run.task is not None:
        run.task.cancel()  # which takes a while: who asks for it again asks for another one
        run.client.runs.pop(run.key, None)
