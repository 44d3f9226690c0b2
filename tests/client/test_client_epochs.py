"""The end of a client's connection, server or process: each request runs once, or ends with an error."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import kaas
from kaas.client.open_calls import OpenCall
from kaas.client.remote_calls import RemoteCalls
from kaas.errors import DeadlineExceeded, NotInitialized, UnknownFunction, UnknownObject, Unreachable
from kaas.wire import protocol
from kaas.wire.connections import reply_reader, timer_thread
from tests.client.client_setting import ONES, TASK, client, server, wait_for_invokes
from tests.client.fake_server import FakeServer
from tests.forks import refused_in_a_child, uses
from tests.timeouts import TIMEOUT_S

__all__ = ["client", "server"]


# --- connections and epochs


@pytest.mark.parametrize("epoch", ["first", "second"])
def test_calls_without_a_reply_are_sent_again(server: FakeServer, client: kaas.Client, epoch: str) -> None:
    function = client.register(TASK)
    server.silent = True
    futures = [client.call(function, {"x": ONES * n}, deadline_s=60.0) for n in range(3)]
    wait_for_invokes(server, 3)
    server.silent = False
    server.again(epoch)
    assert [future.result(TIMEOUT_S)[0] for future in futures] == [0, 2, 4]
    first, second = server.of(protocol.Invoke)[:3], server.of(protocol.Invoke)[3:]
    assert [(invoke.number, invoke.key) for invoke in first] == [(invoke.number, invoke.key) for invoke in second]
    assert all(0 < invoke.deadline_s < 60.0 for invoke in second)
    assert len({hello.session for hello in server.of(protocol.Hello)}) == 1


def test_calls_wait_for_a_server_that_starts(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.stop()
    futures = [client.call(function, {"x": ONES}) for _ in range(3)]
    server.start()
    assert all((future.result(TIMEOUT_S) == 2).all() for future in futures)


def test_a_cancelled_call_is_not_sent_again(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    future = client.call(function, {"x": ONES})
    wait_for_invokes(server, 1)
    server.stop()
    assert future.cancel()
    server.start()
    server.silent = False
    client.call(function, {"x": ONES}).result(TIMEOUT_S)
    assert len(server.of(protocol.Invoke)) == 2


def test_new_calls_are_not_sent_to_a_server_that_ends(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    before = client.call(function, {"x": ONES})
    wait_for_invokes(server, 1)
    server.send(protocol.Goodbye("it ends"))
    assert client.status() == {"asked": "status"}  # Goodbye came before the reply
    after = client.call(function, {"x": 2 * ONES})
    server.answer_all()
    assert (before.result(TIMEOUT_S) == 2).all()
    assert len(server.of(protocol.Invoke)) == 1
    server.again("second")
    assert (after.result(TIMEOUT_S) == 4).all()


def test_a_server_that_has_forgotten_the_session_is_greeted_again(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.failing = [protocol.Failure(0, "UnknownSession", "who is there?")]
    assert (client.call(function, {"x": ONES}).result(TIMEOUT_S) == 2).all()
    assert len(server.of(protocol.Hello)) == 2


def test_what_was_removed_before_its_connection_broke_is_removed(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    client.put("x", ONES)
    removals: list[tuple[Callable[[], None], type[kaas.KaasError]]] = [
        (lambda: client.delete("x"), UnknownObject),
        (lambda: client.unregister(function), UnknownFunction),
    ]
    for remove, error in removals:
        server.breaks_before_done = True
        remove()
        with pytest.raises(error):
            remove()
    assert (server.objects, server.registered) == ({}, {})
    assert len(server.of(protocol.Delete)) == len(server.of(protocol.Unregister)) == 3


def test_bytes_that_are_no_message_end_all_calls(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    futures = [client.call(function, {"x": ONES}) for _ in range(2)]
    wait_for_invokes(server, 2)
    server.send(1)
    for future in futures:
        with pytest.raises(Unreachable, match="no message"):
            future.result(TIMEOUT_S)
    server.silent = False
    assert (client.call(function, {"x": ONES}).result(TIMEOUT_S) == 2).all()


def test_a_call_without_a_reachable_server_fails(server: FakeServer) -> None:
    server.stop()
    with kaas.Client(server.address, patience_s=0.1) as client:
        with pytest.raises(Unreachable) as raised:
            client.register(TASK)
        assert raised.value.address == server.address
        server.start()
        function = client.register(TASK)
        server.stop()
        server.silent = True
        future = client.call(function, {"x": ONES})
        with pytest.raises(Unreachable):
            future.result(TIMEOUT_S)


def test_a_deadline_ends_a_call_without_a_server(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.stop()
    ended = threading.Event()
    future = client.call(function, {"x": ONES}, deadline_s=0.05)
    future.add_done_callback(lambda _: ended.set())  # no thread waits for it
    assert ended.wait(TIMEOUT_S)
    assert isinstance(future.exception(), DeadlineExceeded)


def test_the_close_of_a_client_ends_open_calls(server: FakeServer) -> None:
    server.silent = True
    client = kaas.Client(server.address)
    future = client.call(TASK, {"x": ONES})
    wait_for_invokes(server, 1)
    client.close()
    client.close()
    with pytest.raises(NotInitialized):
        future.result(TIMEOUT_S)
    with pytest.raises(NotInitialized):
        client.call(TASK, {"x": ONES})
    server.until(lambda: bool(server.of(protocol.Cancel)))


def test_a_question_that_is_sent_while_a_client_closes_ends(client: kaas.Client) -> None:
    def make(number: int) -> protocol.Ask:
        client.close()
        return protocol.Ask(number, "status")

    question = client.calls.ask(make)
    assert isinstance(question.error, NotInitialized)


def test_a_call_does_not_wait_for_credit_of_a_closing_client(
    client: kaas.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = client.calls

    def no_credit(*_: Any, **__: Any) -> bool:
        client.close()
        return False

    monkeypatch.setattr(calls, "_begin", no_credit)
    with pytest.raises(NotInitialized):
        calls.submit(OpenCall(calls, protocol.Invoke(1, "f"), (), 10, tuple, "f"))


def test_a_forked_process_needs_a_client_of_its_own(client: kaas.Client) -> None:
    function = client.register(TASK)
    child = os.fork()
    if child == 0:
        try:
            client.call(function, {"x": ONES})
        except NotInitialized:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_can_neither_await_nor_cancel_calls(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    future = client.call(function, {"x": ONES})
    wait_for_invokes(server, 1)
    assert refused_in_a_child(uses(future)) == 6
    server.answer_all()
    assert (future.result(TIMEOUT_S) == 2).all()
    assert not server.of(protocol.Cancel)


def test_a_forked_process_may_close_the_client_of_its_parent(server: FakeServer, client: kaas.Client) -> None:
    function = client.register(TASK)
    server.silent = True
    future = client.call(function, {"x": ONES})
    wait_for_invokes(server, 1)
    child = os.fork()
    if child == 0:
        client.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.answer_all()
    assert (future.result(TIMEOUT_S) == 2).all()
    assert not server.of(protocol.Cancel)


def assert_rid_of(calls: weakref.ref[RemoteCalls]) -> None:
    """Assert that calls are garbage, after the client's idle threads have ended: each may start the next before."""
    for name in ("kaas-connection", "kaas-answers", "kaas-later"):
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join(TIMEOUT_S)
    gc.collect()
    assert calls() is None


def test_a_client_that_is_forgotten_is_closed(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reply_reader, timer_thread):
        monkeypatch.setattr(module, "LINGER_S", 0.01)

    def used() -> weakref.ref[RemoteCalls]:
        client, done = kaas.Client(server.address), threading.Event()
        client.call(TASK, {"x": ONES}).add_done_callback(lambda _: done.set())
        assert done.wait(TIMEOUT_S)
        return weakref.ref(client.calls)

    assert_rid_of(used())


def test_a_call_with_an_interrupted_cancellation_is_watched_until_its_reply(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reply_reader, timer_thread):
        monkeypatch.setattr(module, "LINGER_S", 0.01)

    def interrupt(_: kaas.Future) -> None:
        raise KeyboardInterrupt

    def used() -> weakref.ref[RemoteCalls]:
        client = kaas.Client(server.address)
        server.silent = True
        future = client.call(TASK, {"x": ONES})
        future.add_done_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            future.cancel()
        wait_for_invokes(server, 1)
        server.answer_all()
        return weakref.ref(client.calls)

    assert_rid_of(used())
