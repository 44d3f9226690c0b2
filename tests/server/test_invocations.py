"""Ends of requests, of connections and of the server that come at once: each request is charged and answered as it
ran, and no key leads to another's answer."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kaas.errors import DeviceUnavailable, StateUnavailable, UnknownObject
from kaas.pool.core.requests import Request, RequestState
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.immediate_future import ImmediateFuture
from kaas.server import idempotency_keys
from kaas.server.building.uploads import AT_ONCE_BYTES
from kaas.server.invocation_request import sent_bytes
from kaas.server.session_manager import KeptLimits, SessionManager
from kaas.server.sessions import FAILURE_BYTES
from kaas.server.state.durable_replies import ANSWERS
from kaas.server.state.object_store import NewObject
from kaas.server.usage.journal import Journal
from kaas.server.usage.metering import Meter
from kaas.wire import protocol
from kaas.wire.specs import RunRecord
from tests.pool.fake_workers import settle
from tests.timeouts import TIMEOUT_S

LIMITS = protocol.Limits(requests=8, credit_bytes=1 << 20, frame_bytes=1 << 20)
VALUE = b"four"
RECORD = RunRecord({}, {}, [], [], 0.25)


class Program:
    """A connection of alice's, with the messages on it."""

    user, leaving_bytes, leaving_result_bytes = "alice", 0, 0

    def __init__(self) -> None:
        self.sent: list[tuple[protocol.FromServer, list[Any]]] = []

    def send(self, header: protocol.FromServer, frames: Sequence[Any] = ()) -> bool:
        self.sent.append((header, list(frames)))
        return True

    def drop(self) -> None: ...

    def answers(self) -> list[tuple[protocol.FromServer, list[Any]]]:
        return [sent for sent in self.sent if isinstance(sent[0], protocol.Result | protocol.Failure)]


class FakeServer:
    """A server on a fake pool with one function, "f", with one output, "y".

    Fields:
        requests: submitted to the pool. held: those in flight after their reply. stored: new objects by name.
        answers: keys of durable replies. disk: set while outputs are stored at once. disk_error: instead of storing.
    """

    def __init__(self, meter: Meter, keeping: KeptLimits) -> None:
        self.requests: list[Request] = []
        self.held: list[Request] = []
        self.stored: dict[str, NewObject] = {}
        self.answers: set[str] = set()
        self.disk_error: Exception | None = None
        self.disk = asyncio.Event()
        self.disk.set()
        self.meter = meter
        call = lambda *_: WorkerCall("f", "alice", None, 0)  # noqa: E731
        function = SimpleNamespace(
            call=call, label="f", key="f", input_bytes={}, output_bytes=(4,), outputs=(("uint8", (4,)),)
        )
        remote = SimpleNamespace(key="f", function=function, outputs=("y",), given={}, scalars={}, constants=None)
        remote.before, remote.after, remote.etask, remote.label = "", "", None, "f"
        objects = SimpleNamespace(check_room=lambda *_: None, store=self._store, named=self._named)
        stores = SimpleNamespace(functions=SimpleNamespace(named=lambda *_: remote), objects=objects)
        stores.durable_replies = SimpleNamespace(remove=lambda _, key: self.answers.remove(key))
        pool = SimpleNamespace(begin=self._begin, unfinished=self.held.__contains__, cancelled=lambda _: None)
        service = SimpleNamespace(pool=pool)
        none: Any = None
        self.manager = SessionManager(cast(Any, service), cast(Any, stores), meter, none, lambda _: LIMITS, keeping)

    def _begin(self, call: WorkerCall) -> Request:
        self.requests.append(Request(len(self.requests), call, 0.0, ImmediateFuture(), RequestState.QUEUED))
        return self.requests[-1]

    async def _store(self, _: str, named: Sequence[NewObject], entries: Mapping[str, Mapping[str, bytes]]) -> None:
        await self.disk.wait()
        if self.disk_error is not None:
            raise self.disk_error
        self.stored |= {each.name: each for each in named}
        self.answers |= entries.get(ANSWERS, {}).keys()

    def _named(self, _: str, name: str) -> None:
        raise UnknownObject(f"no object {name!r}", object=name)

    def program(self, session: str = "here") -> Program:
        """Return a program that has sent Hello."""
        program = Program()
        self.deliver(program, protocol.Hello(protocol.VERSION, session))
        return program

    def deliver(self, program: Program, message: protocol.FromClient, *frames: bytes) -> None:
        self.manager.receive(program, [protocol.encode(message), *frames])

    def ran(self, request: Request) -> None:
        request.record = RECORD
        request.answer.set_result([VALUE])

    def charged(self) -> list[tuple[int, int, dict[str, int]]]:
        return [(flow.requests, flow.device_ns, flow.outcomes) for flow in self.meter.usage().flows]


def play(folder: Path, scenario: Callable[[FakeServer], Awaitable[None]], **keeping: Any) -> None:
    async def main() -> None:
        meter = Meter(folder)
        meter.open()
        server = FakeServer(meter, KeptLimits(**keeping))
        await scenario(server)
        server.manager.close()
        await meter.close()

    asyncio.run(main())


def test_a_request_that_succeeds_as_its_device_is_lost_is_stored_and_charged(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", store={"y": "there"}))
        server.held.extend(server.requests)
        server.ran(server.requests[0])
        await settle()
        assert program.answers() == [(protocol.Result(1), [])]
        assert server.stored["there"].value == VALUE
        assert server.charged() == [(1, 250_000_000, {"succeeded": 1})]

    play(tmp_path, scenario)


@pytest.mark.parametrize("etask", [False, True])
def test_an_error_of_a_full_disk_is_not_remembered(tmp_path: Path, etask: bool) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        message = protocol.Invoke(1, "f", store={"y": "there"}, key="k")
        server.deliver(program, message)
        server.disk_error = StateUnavailable("the server's disk is full")
        if etask:
            cast(Any, server.manager.clients["alice"].runs["k"].remote).etask = object()
        server.ran(server.requests[0])
        await settle()
        assert server.charged() == [(0, 250_000_000, {"StateUnavailable": 1})]
        server.disk_error = None
        server.deliver(program, msgspec.structs.replace(message, number=2))
        (failure, _), *others = program.answers()
        assert isinstance(failure, protocol.Failure)
        assert failure.error == "StateUnavailable"
        if etask:  # it may have had an effect
            assert failure.retry_s is None
            assert [answer.error for answer, _ in others if isinstance(answer, protocol.Failure)] == [failure.error]
            return
        assert failure.retry_s is not None
        server.ran(server.requests[1])
        await settle()
        assert program.answers()[1:] == [(protocol.Result(2), [])]
        assert server.stored["there"].value == VALUE
        assert server.charged() == [(1, 500_000_000, {"StateUnavailable": 1, "succeeded": 1})]

    play(tmp_path, scenario)


def test_an_error_that_passes_is_no_reply_to_a_request_charged_before_a_restart(tmp_path: Path) -> None:
    message = protocol.Invoke(1, "f", store={"y": "there"}, key="k")

    async def killed_while_it_stores(server: FakeServer) -> None:
        server.disk.clear()
        server.deliver(server.program(), message)
        server.ran(server.requests[0])
        await settle()
        assert server.charged() == [(1, 250_000_000, {"succeeded": 1})]

    async def without_room_at_first(server: FakeServer) -> None:
        program = server.program()
        for number, error in enumerate((StateUnavailable("the server's disk is full"), None), 1):
            server.disk_error = error
            server.deliver(program, msgspec.structs.replace(message, number=number))
            server.ran(server.requests[-1])
            await settle()
        assert [type(answer) for answer, _ in program.answers()] == [protocol.Failure, protocol.Result]
        assert [requests for requests, *_ in server.charged()] == [1]

    play(tmp_path, killed_while_it_stores)
    play(tmp_path, without_room_at_first)


def test_an_error_of_unwritten_usage_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", key="k"))
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "write", no_room)
            server.ran(server.requests[0])
        server.deliver(program, protocol.Invoke(2, "f", key="k"))
        server.ran(server.requests[1])
        (failure, _), result = program.answers()
        assert isinstance(failure, protocol.Failure)
        assert (failure.error, failure.retry_s is None) == ("UsageUnavailable", False)
        assert result == (protocol.Result(2, ("y",)), [VALUE])

    play(tmp_path, scenario)


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_reply_that_no_key_finds_is_kept_for_a_session_without_a_connection(tmp_path: Path, lost_first: bool) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", key="k"))
        if lost_first:
            server.manager.gone(program)
        server.ran(server.requests[0])
        server.manager.gone(program)
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", key="k"))
        assert program.answers() == [(protocol.Result(1, ("y",)), [VALUE])]
        assert len(server.requests) == 1

    play(tmp_path, scenario, answers_bytes=1)


def test_a_session_gets_its_reply_when_its_connection_returns_to_it(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program("one")
        server.deliver(program, protocol.Invoke(1, "f"))
        server.deliver(program, protocol.Hello(protocol.VERSION, "other"))
        server.ran(server.requests[0])
        assert program.answers() == []
        server.deliver(program, protocol.Hello(protocol.VERSION, "one"))
        assert program.answers() == [(protocol.Result(1, ("y",)), [VALUE])]

    play(tmp_path, scenario)


def test_a_disconnected_client_is_not_charged_for_a_request_that_a_close_cancels(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f"))
        server.manager.gone(program)
        server.manager.close()
        assert server.requests[0].answer.cancelled()
        assert server.charged() == [(0, 0, {"cancelled": 1})]

    play(tmp_path, scenario)


def test_an_output_unstored_at_the_close_is_neither_charged_nor_stored(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        server.deliver(server.program(), protocol.Invoke(1, "f", store={"y": "there"}))
        server.ran(server.requests[0])
        server.manager.close()
        await settle()
        assert (server.charged(), server.stored) == ([], {})

    play(tmp_path, scenario)


@pytest.mark.parametrize("end", ["cancelled", "forgotten"])
@pytest.mark.parametrize("storing", [False, True])
def test_a_request_whose_outputs_are_being_stored_ends_with_them_and_another_stores_nothing(
    tmp_path: Path, storing: bool, end: str
) -> None:
    invoke = protocol.Invoke(1, "f", key="k", store={"y": "there"})

    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        server.disk.clear()
        server.deliver(first, invoke)
        server.ran(server.requests[0])
        if storing:
            await settle()
        if end == "cancelled":
            server.deliver(first, protocol.Cancel(1))
        else:
            server.manager.gone(first)
            server.manager._sweep_sessions()
        server.disk.set()
        await settle()
        client = server.manager.clients["alice"]
        assert ([*server.stored], server.answers) == ((["there"], {"k"}) if storing else ([], set()))
        assert (client.finished.get("k") is not None) == storing
        if end == "cancelled":
            assert [type(header) for header, _ in first.answers()] == [protocol.Result if storing else protocol.Failure]
        server.deliver(second, invoke)  # a repeat, or another request
        if not storing:
            server.ran(server.requests[1])
        await settle()
        assert second.answers() == [(protocol.Result(1), [])]
        assert ([*server.stored], server.answers, client.runs) == (["there"], {"k"}, {})
        assert client.storing.nbytes == 0

    play(tmp_path, scenario, lost_s=0.0)


def test_the_receipt_of_a_retryable_failure_keeps_the_reply_to_the_retry(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program, key = server.program(), "here-1"
        server.deliver(program, protocol.Invoke(1, "f", key=key))
        server.requests[0].answer.set_exception(DeviceUnavailable("it restarts"))
        server.deliver(program, protocol.Invoke(2, "f", key=key))
        server.ran(server.requests[1])
        server.deliver(program, protocol.Received((1,)))
        server.deliver(program, protocol.Invoke(3, "f", key=key))
        assert program.answers()[1:] == [(protocol.Result(number, ("y",)), [VALUE]) for number in (2, 3)]
        server.deliver(program, protocol.Received((2, 3)))
        assert server.charged() == [(1, 250_000_000, {"DeviceUnavailable": 1, "succeeded": 1})]

    play(tmp_path, scenario)


def test_a_repeated_key_is_charged_again_if_its_reply_was_not_kept(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        for number in (1, 2):
            server.deliver(program, protocol.Invoke(number, "f", key="k"))
            server.deliver(program, protocol.Received((number - 1,)))
            server.ran(server.requests[number - 1])
        assert server.charged() == [(2, 500_000_000, {"succeeded": 2})]

    play(tmp_path, scenario, answers_bytes=1)


# --- requests with large inputs and a known key: another thread hashes the inputs before the request joins

LARGE = bytes(AT_ONCE_BYTES + 1)


async def reached(condition: Callable[[], object]) -> None:
    """Run the loop until a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0)


def test_a_request_that_joins_while_the_other_is_cancelled_runs_itself(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(first, protocol.Cancel(1))
        await reached(lambda: len(server.requests) == 2)
        server.ran(server.requests[1])
        await reached(second.answers)
        assert second.answers() == [(protocol.Result(1, ("y",)), [VALUE])]
        assert [getattr(header, "error", "") for header, _ in first.answers()] == ["Cancelled"]

    play(tmp_path, scenario)


def test_a_request_joins_the_one_that_has_the_key_and_the_same_inputs(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        first, second, third = (server.program(name) for name in ("first", "second", "third"))
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)  # sent again
        server.deliver(third, protocol.Invoke(1, "f", {"x": protocol.Input(frame=1)}, key="k"), LARGE)
        await reached(third.answers)
        server.ran(server.requests[0])
        await reached(second.answers)
        assert first.answers() == second.answers() == [(protocol.Result(1, ("y",)), [VALUE])]
        assert [getattr(header, "error", "") for header, _ in third.answers()] == ["KeyReused"]
        assert len(server.requests) == 1

    play(tmp_path, scenario)


def test_a_request_does_not_join_one_of_another_function_that_has_the_key_by_then(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(first, protocol.Cancel(1))
        server.deliver(first, protocol.Invoke(2, "g", key="k"), LARGE)
        await reached(second.answers)
        assert [getattr(header, "error", "") for header, _ in second.answers()] == ["KeyReused"]
        assert len(server.requests) == 2

    play(tmp_path, scenario)


def test_a_joining_request_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
        server.deliver(second, protocol.Cancel(1))
        assert [getattr(header, "error", "") for header, _ in second.answers()] == ["Cancelled"]
        client = server.manager.clients["alice"]
        await reached(lambda: not client.questions.count)
        server.ran(server.requests[0])
        await reached(first.answers)
        assert first.answers() == [(protocol.Result(1, ("y",)), [VALUE])]
        assert len(second.answers()) == 1
        for program in (first, second):
            server.deliver(program, protocol.Received((1,)))
        assert (client.requests.count, client.requests.nbytes) == (0, 0)

    play(tmp_path, scenario)


def test_cancelled_requests_that_joined_stay_within_the_limit_of_open_requests(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program, most = server.program(), LIMITS.requests
        server.deliver(program, protocol.Invoke(1, "f", key="k"), LARGE)
        client = server.manager.clients["alice"]
        for number in range(2, 2 * most):
            server.deliver(program, protocol.Invoke(number, "f", key="k"), LARGE)
            server.deliver(program, protocol.Cancel(number))
            await reached(lambda: not client.questions.count)
        assert client.requests.count == most
        errors = [getattr(header, "error", "") for header, _ in program.answers()]
        assert errors == ["Cancelled"] * (most - 1) + ["QueueFull"] * (most - 1)
        server.deliver(program, protocol.Received(tuple(range(2, 2 * most))))
        assert client.requests.count == 1

    play(tmp_path, scenario)


def test_inputs_of_cancelled_requests_take_credit_until_they_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = threading.Event()
    monkeypatch.setattr(idempotency_keys, "request_digest", lambda *_: str(hashed.wait(TIMEOUT_S)))

    async def scenario(server: FakeServer) -> None:
        program, most = server.program(), LIMITS.requests
        server.deliver(program, protocol.Invoke(0, "f", key="k"), LARGE)
        client = server.manager.clients["alice"]
        try:
            for number in range(1, 2 * most):
                server.deliver(program, protocol.Invoke(number, "f", key="k"), LARGE)
                server.deliver(program, protocol.Cancel(number))
                server.deliver(program, protocol.Received((number,)))
                await settle()
            assert (client.questions.count, client.requests.count) == (most, 1)
        finally:
            hashed.set()
        await reached(lambda: not client.questions.count)

    play(tmp_path, scenario)


def test_a_number_that_joins_again_after_it_was_cancelled_can_be_cancelled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = threading.Event()
    monkeypatch.setattr(idempotency_keys, "request_digest", lambda *_: str(hashed.wait(TIMEOUT_S)))

    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        try:
            for _ in range(3):
                server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
                server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)  # sent again
                await settle()
                server.deliver(second, protocol.Cancel(1))
                server.deliver(second, protocol.Received((1,)))
            assert [getattr(header, "error", "") for header, _ in second.answers()] == ["Cancelled"] * 3
        finally:
            hashed.set()
        client = server.manager.clients["alice"]
        await reached(lambda: not client.questions.count)
        assert len(second.answers()) == 3

    play(tmp_path, scenario)


@pytest.mark.parametrize("leave", ["another Hello", "no connection"])
def test_a_session_that_leaves_while_a_request_joins_keeps_no_credit(tmp_path: Path, leave: str) -> None:
    async def scenario(server: FakeServer) -> None:
        first, second = server.program("first"), server.program("second")
        client = server.manager.clients["alice"]
        server.deliver(first, protocol.Invoke(1, "f", key="k"), LARGE)
        server.ran(server.requests[0])
        await reached(first.answers)
        server.deliver(first, protocol.Received((1,)))
        server.deliver(second, protocol.Invoke(1, "f", key="k"), LARGE)
        if leave == "another Hello":
            server.deliver(second, protocol.Hello(protocol.VERSION, "third"))
        else:
            server.manager.gone(second)
        await reached(lambda: not client.questions.count)
        server.manager._sweep_sessions()
        assert "second" not in client.sessions
        assert (client.requests.count, client.requests.nbytes) == (0, 0)

    play(tmp_path, scenario, lost_s=0.0)


# --- inputs


def test_a_frame_is_counted_for_each_input_that_names_it() -> None:
    inputs = {name: protocol.Input(frame=frame) for name, frame in [("a", 1), ("b", 1), ("c", 2)]}
    message = protocol.Invoke(1, "f", {**inputs, "d": protocol.Input(object="stored")})
    assert sent_bytes(message, [b"header", b"x" * 10, b"y" * 5]) == 10 + 10 + 5


def test_a_request_with_a_key_and_an_unknown_object_fails_once(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", {"x": protocol.Input(object="none")}, key="k"))
        await settle()
        assert [getattr(header, "error", "") for header, _ in program.answers()] == ["UnknownObject"]
        assert server.requests == []
        client = server.manager.clients["alice"]
        server.deliver(program, protocol.Received((1,)))
        assert (client.requests.count, client.requests.nbytes) == (0, 0)

    play(tmp_path, scenario)


# --- clients that do not read


LONG = "\U0001f600" * 16_300
"""A name of 65 KB."""


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        ("UnexpectedInput", {"inputs": {LONG: protocol.Input(frame=1)}}),
        ("WrongScalar", {"scalars": {LONG: VALUE}}),
        ("InvalidRequest", {"store": {LONG: "object"}}),
    ],
)
def test_an_error_repeats_only_a_part_of_a_long_name(tmp_path: Path, error: str, asked: dict[str, Any]) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f", **asked), VALUE)
        ((failure, _),) = program.answers()
        assert isinstance(failure, protocol.Failure)
        assert failure.error == error
        assert len(protocol.encode(failure)) <= FAILURE_BYTES

    play(tmp_path, scenario)


def test_a_client_that_does_not_read_its_failures_gets_queue_full(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        program = server.program()
        server.deliver(program, protocol.Invoke(1, "f"))
        program.leaving_bytes = LIMITS.credit_bytes + 1
        server.deliver(program, protocol.Invoke(1, "f"))  # the same request, which has no answer yet
        assert program.answers() == []
        server.deliver(program, protocol.Invoke(2, "f", {LONG: protocol.Input(frame=1)}), VALUE)
        ((failure, _),) = program.answers()
        assert isinstance(failure, protocol.Failure)
        assert (failure.number, failure.error) == (2, "QueueFull")
        assert failure.retry_s
        program.leaving_bytes, program.leaving_result_bytes = 0, 2 * LIMITS.credit_bytes + 1
        server.deliver(program, protocol.Invoke(3, "f"))
        ((failure, _),) = program.answers()[1:] or program.answers()
        assert isinstance(failure, protocol.Failure)
        assert (failure.number, failure.error) == (3, "QueueFull")
        program.leaving_bytes, program.leaving_result_bytes = LIMITS.credit_bytes, 2 * LIMITS.credit_bytes
        server.deliver(program, protocol.Invoke(4, "f"))
        assert len(server.requests) == 2

    play(tmp_path, scenario)
