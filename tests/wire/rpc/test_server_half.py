"""The server half: each run has one reply, each wait gets it once, and the credit of a caller is given back whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kaas.wire.rpc.idempotency_cache import IdempotencyCache
from kaas.wire.rpc.server_half import KeyOwner, ServerHalf, Wait, WaitingSession, WaitState
from tests.wire.rpc.network import Account, SimulatedRun

CALL_BYTES, REPLY_BYTES, KEPT_BYTES = 7, 3, 5


class SizedRun(SimulatedRun):
    """A run with a reply of several bytes, other ones while it is kept."""

    nbytes: int = REPLY_BYTES

    @property
    def kept_bytes(self) -> int:
        return KEPT_BYTES


@dataclass
class Server:
    """A server half with one caller, and the replies that it has sent: (session, number, run)."""

    half: ServerHalf[SizedRun] = field(default_factory=ServerHalf)
    account: Account = field(default_factory=Account)
    sent: list[tuple[WaitingSession, int, SizedRun]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caller: KeyOwner[SizedRun] = KeyOwner(finished=IdempotencyCache(100, 1e9), requests=self.account)

    def session(self) -> WaitingSession:
        return WaitingSession(self.caller, object())

    def call(self, session: WaitingSession, number: int, key: str = "", **fields: Any) -> SizedRun:
        run = self.caller.known(key)
        if run is None:
            run = SizedRun(client=self.caller, key=key, **fields)
            if key:
                self.caller.runs[key] = run
        ready = self.half.wait(session, number, run, CALL_BYTES)
        if ready is not None:
            self.send(ready)
        return run

    def send(self, wait: Wait, *, through: bool = True) -> None:
        self.sent.append((wait.session, wait.number, wait.run))
        self.half.sent(wait, through=through)

    def end(self, run: SizedRun) -> None:
        waits = self.half.ended(run)
        for wait in waits:
            if not wait.session.lost:
                self.send(wait)
        self.half.settle(run, waits, 0.0)


@pytest.fixture
def server() -> Server:
    return Server()


def test_all_that_wait_for_a_run_get_its_reply_and_a_later_call_with_the_key_too(server: Server) -> None:
    first, second = server.session(), server.session()
    run = server.call(first, 1, "key")
    assert server.call(second, 9, "key") is run
    assert server.sent == []
    server.end(run)
    assert server.sent == [(first, 1, run), (second, 9, run)]
    assert server.call(first, 2, "key") is run
    assert server.sent[2:] == [(first, 2, run)]
    assert server.caller.runs == {}


def test_without_a_key_each_call_has_a_run_of_its_own(server: Server) -> None:
    session = server.session()
    assert server.call(session, 1) is not server.call(session, 2)


def test_a_reply_takes_credit_in_place_of_its_call_until_it_is_acknowledged(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    assert (server.account.count, server.account.nbytes) == (1, CALL_BYTES)
    server.end(run)
    assert (server.account.count, server.account.nbytes) == (1, REPLY_BYTES)
    assert server.half.received(session, [1]) == [run]
    assert (server.account.count, server.account.nbytes) == (0, 0)


def test_an_acknowledgement_counts_once_and_only_after_the_reply(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    assert server.half.received(session, [1, 2]) == []
    assert session.waits[1].state is WaitState.RUNNING
    server.end(run)
    assert server.half.received(session, [1, 1]) == [run]
    assert server.account == Account(0, 0)


def test_a_cancelled_call_gets_its_own_reply_and_gives_its_bytes_back_while_others_wait_on(server: Server) -> None:
    first, second = server.session(), server.session()
    run = server.call(first, 1, "key")
    server.call(second, 1, "key")
    cancelled = SizedRun(client=server.caller, done=True)
    wait, alone = server.half.cancel(first, 1, cancelled)
    assert wait is first.waits[1]
    assert alone is None, "another session waits for the run"
    assert server.account == Account(2, CALL_BYTES)
    server.send(wait)
    server.end(run)
    assert server.sent == [(first, 1, cancelled), (second, 1, run)]


def test_the_last_cancellation_returns_the_run(server: Server) -> None:
    first, second = server.session(), server.session()
    run = server.call(first, 1, "key")
    server.call(second, 1, "key")
    cancelled = SizedRun(client=server.caller, done=True)
    assert server.half.cancel(first, 1, cancelled)[1] is None
    assert server.half.cancel(second, 1, cancelled)[1] is run


def test_a_committed_run_cannot_be_cancelled_and_goes_on_without_a_caller(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1, "key", committed=True, durable=True)
    assert server.half.cancel(session, 1, SizedRun(client=server.caller, done=True)) == (None, None)
    assert server.half.forget(session) == []
    assert server.account == Account(0, 0)
    server.end(run)
    assert server.caller.known("key") is run


def test_a_withdrawn_wait_gives_its_credit_back(server: Server) -> None:
    session = server.session()
    server.call(session, 1)
    wait = session.waits[1]
    assert (server.half.withdraw(wait), server.half.withdraw(wait)) == (True, False)
    assert (session.waits, server.account) == ({}, Account(0, 0))


def test_a_call_with_a_reply_cannot_be_cancelled(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    server.end(run)
    assert server.half.cancel(session, 1, SizedRun(client=server.caller, done=True)) == (None, None)
    assert session.waits[1].run is run
    assert server.half.cancel(session, 2, SizedRun(client=server.caller, done=True)) == (None, None)


def test_a_new_connection_gets_the_replies_that_are_not_acknowledged_and_each_once(server: Server) -> None:
    session = server.session()
    runs = [server.call(session, number) for number in range(3)]
    server.call(session, 3)
    for run in runs:
        server.end(run)
    server.half.received(session, [0])
    channel = object()
    again = server.half.greeted(session, channel)
    assert [wait.number for wait in again] == [1, 2]
    for wait in again:
        server.send(wait)
    assert server.half.greeted(session, channel) == []


def test_a_reply_that_its_channel_did_not_carry_is_ready_for_the_same_channel(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    (wait,) = server.half.ended(run)
    server.send(wait, through=False)
    assert wait.state is WaitState.READY
    assert server.half.greeted(session, session.channel) == [wait]


def test_a_session_without_a_connection_gets_its_reply_on_the_next_one(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    server.half.lost(session)
    server.end(run)
    assert server.sent == []
    assert [wait.run for wait in server.half.greeted(session, object())] == [run]


def test_a_reply_that_a_lost_session_finds_by_its_key_takes_no_credit(server: Server) -> None:
    lost, connected = server.session(), server.session()
    run = server.call(lost, 1, "key")
    server.call(connected, 1, "key")
    server.half.lost(lost)
    assert lost.waits[1].state is WaitState.RUNNING
    server.end(run)
    assert (lost.waits, [*connected.waits]) == ({}, [1])
    assert server.account == Account(1, REPLY_BYTES)
    server.half.lost(connected)
    assert (connected.waits, server.account) == ({}, Account(0, 0))
    assert server.call(lost, 2, "key") is run


def test_without_a_key_a_lost_session_keeps_its_reply(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1)
    server.end(run)
    server.half.lost(session)
    assert session.waits[1].state is WaitState.READY


def test_a_reply_without_a_wait_is_kept_only_if_it_is_lasting(server: Server) -> None:
    session = server.session()
    gone, durable = server.call(session, 1, "gone"), server.call(session, 2, "durable", durable=True)
    assert server.half.forget(session) == [gone, durable]
    assert server.account == Account(0, 0)
    server.end(gone)
    server.end(durable)
    assert server.caller.known("gone") is None
    assert server.caller.known("durable") is durable
    assert server.caller.runs == {}


def test_a_reply_that_is_not_final_is_not_kept(server: Server) -> None:
    session = server.session()
    run = server.call(session, 1, "key", busy=True)
    server.end(run)
    assert not server.half.kept(run)
    assert server.call(session, 2, "key") is not run


def test_a_session_that_ends_leaves_the_runs_for_which_others_wait(server: Server) -> None:
    first, second = server.session(), server.session()
    server.call(first, 1, "key")
    server.call(second, 1, "key")
    alone = server.call(first, 2)
    server.end(server.call(first, 3))
    assert server.half.forget(first) == [alone]
    assert (first.waits, server.account) == ({}, Account(1, CALL_BYTES))


def test_a_later_run_of_a_key_is_not_forgotten_by_the_end_of_an_earlier_one(server: Server) -> None:
    session = server.session()
    earlier = server.call(session, 1, "key")
    later = server.caller.runs["key"] = SizedRun(client=server.caller, key="key")
    server.end(earlier)
    assert server.caller.known("key") is later
