"""A server sends one reply for each request, within its client's credit, in every course of events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kaas
from kaas.wire import protocol
from tests.server.conftest import Serve
from tests.server.servers import STEPS, WIDTH, Server, Speaker, scaled
from tests.server.test_invocations import FakeServer, Program, play

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32).tobytes()
LIMITS = {"requests": 8, "credit_bytes": 16 * len(ONES), "lost_s": 1.0, "answers_bytes": 1 << 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that grants little."""
    server = Server(tmp_path_factory.mktemp("server"), {"limits": LIMITS})
    yield server
    server.close()


@pytest.fixture
def alice(server: Server) -> Iterator[Speaker]:
    speaker = server.speaker("alice")
    speaker.register(scaled(), "double")
    yield speaker
    settle(speaker)
    speaker.close()


def settle(speaker: Speaker) -> None:
    """Receive the replies to all open requests, so that the next test has all credit."""
    while speaker.ask("status")["open"]:
        speaker.received(range(1, 2000))


def value_of(frame: bytes) -> Any:
    return np.frombuffer(frame, np.float32)


def failed(speaker: Speaker, message: protocol.FromClient | bytes, *frames: Any) -> protocol.Failure:
    speaker.send(message, *frames)
    answer, _ = speaker.receive()
    assert isinstance(answer, protocol.Failure), answer
    return answer


# --- greetings


def test_a_client_that_sent_no_hello_gets_unknown_session(server: Server) -> None:
    speaker = Speaker(server.endpoint, server.key_of("alice"))
    failure = failed(speaker, protocol.Ask(7, "health"))
    assert (failure.number, failure.error) == (7, "UnknownSession")
    assert speaker.greet().client == "alice"
    assert speaker.ask("health")["live"]
    speaker.close()


def test_another_version_is_refused(server: Server) -> None:
    speaker = Speaker(server.endpoint, server.key_of("alice"))
    failure = failed(speaker, protocol.Hello(protocol.VERSION + 1, "a" * 32))
    assert (failure.number, failure.error) == (0, "ConfigMismatch")
    assert failure.fields["versions"] == [protocol.VERSION]
    speaker.close()


def test_a_welcome_reports_the_granted_limits(alice: Speaker) -> None:
    welcome = alice.greet(alice.session)
    assert (welcome.limits.requests, welcome.limits.credit_bytes) == (8, LIMITS["credit_bytes"])


# --- one answer for each request


def test_a_request_returns_its_output(alice: Speaker) -> None:
    number = alice.invoke("double", ONES)
    answer, frames = alice.receive()
    assert answer == protocol.Result(number, ("y",))
    assert (value_of(frames[0]) == 2).all()


def test_functions_are_their_clients(alice: Speaker, server: Server) -> None:
    bob = server.speaker("bob")
    own = bob.register(scaled(5.0))
    assert (
        failed(alice, protocol.Invoke(900, own.function, {"x": protocol.Input(frame=1)}), ONES).error
        == "UnknownFunction"
    )
    bob.close()


def test_a_request_beyond_all_credit_is_refused_for_good(alice: Speaker) -> None:
    width = 16 * WIDTH
    alice.register(scaled(width=width), "large")
    failure = failed(alice, protocol.Invoke(900, "large", {"x": protocol.Input(frame=1)}), bytes(4 * width))
    assert (failure.error, failure.retry_s) == ("InvalidRequest", None)


def test_values_larger_than_a_message_of_the_pool_are_processed(serve: Serve) -> None:
    speaker = serve().speaker()
    width = 1 << 20  # 4 MB: far beyond the size of a message of the pool
    speaker.register(scaled(width=width), "large")
    value = np.arange(width, dtype=np.float32)
    for _ in range(2):
        speaker.received([speaker.invoke("large", value)])
        _, frames = speaker.receive()
        assert (value_of(frames[0]) == 2 * value).all()
    speaker.close()


def test_an_invoke_sent_again_is_the_same_request(alice: Speaker) -> None:
    numbers = [alice.invoke("double", ONES) for _ in range(3)]
    for number in numbers:
        alice.invoke("double", ONES, number=number)
    answered = [alice.receive()[0] for _ in numbers]
    assert sorted(each.number for each in answered if isinstance(each, protocol.Result)) == numbers
    assert alice.quiet()


def test_a_reply_is_sent_again_on_a_new_connection(alice: Speaker, server: Server) -> None:
    number = alice.invoke("double", ONES)
    assert isinstance(alice.receive()[0], protocol.Result)
    again = Speaker(server.endpoint, server.key_of("alice"))
    again.greet(alice.session)
    answer, frames = again.receive()
    assert answer == protocol.Result(number, ("y",))
    assert (value_of(frames[0]) == 2).all()
    again.invoke("double", ONES, number=number)
    assert again.quiet()
    again.received([number])
    again.invoke("double", ONES, number=number)  # now it is a new one
    assert isinstance(again.receive()[0], protocol.Result)
    settle(again)
    again.close()
    alice.socket = Speaker(server.endpoint, server.key_of("alice")).socket
    alice.greet()


def test_a_second_hello_on_a_connection_brings_nothing_again(alice: Speaker) -> None:
    alice.invoke("double", ONES)
    assert isinstance(alice.receive()[0], protocol.Result)
    alice.greet(alice.session)
    assert alice.quiet()


def test_another_client_does_not_get_at_a_session(alice: Speaker, server: Server) -> None:
    alice.invoke("double", ONES)
    alice.receive()
    bob = server.speaker("bob", session=alice.session)
    assert bob.quiet()
    assert bob.ask("status")["open"] == 0
    bob.close()


# --- keys of idempotency


def test_one_key_is_one_request(alice: Speaker, server: Server) -> None:
    key = token_hex(8)
    numbers = [alice.invoke("double", ONES, key=key), alice.invoke("double", ONES, key=key)]
    for _ in numbers:
        answer, frames = alice.receive()
        assert isinstance(answer, protocol.Result)
        assert (value_of(frames[0]) == 2).all()
    alice.received(numbers)
    other = server.speaker("alice")  # of the same client
    before = sum(each["count"] for each in other.ask("stats")["outcomes"])
    number = other.invoke("double", ONES, key=key)
    answer, frames = other.receive()
    assert answer == protocol.Result(number, ("y",))
    assert (value_of(frames[0]) == 2).all()  # the first one's answer
    assert sum(each["count"] for each in other.ask("stats")["outcomes"]) == before
    settle(other)
    other.close()


def test_a_key_belongs_to_its_client(alice: Speaker, server: Server) -> None:
    key = token_hex(8)
    alice.invoke("double", ONES, key=key)
    alice.receive()
    bob = server.speaker("bob")
    bob.register(scaled(3.0), "double")
    bob.invoke("double", ONES, key=key)
    _, frames = bob.receive()
    assert (value_of(frames[0]) == 3).all()
    settle(bob)
    bob.close()


def test_a_key_of_another_function_is_refused(alice: Speaker) -> None:
    alice.register(scaled(3.0), "treble")
    key = token_hex(8)
    alice.invoke("double", ONES, key=key)
    assert isinstance(alice.receive()[0], protocol.Result)
    failure = failed(alice, protocol.Invoke(800, "treble", {"x": protocol.Input(frame=1)}, key=key), ONES)
    assert failure.error == "KeyReused"
    for long in ("k" * 65, "ü" * 33):
        failure = failed(alice, protocol.Invoke(801, "double", {"x": protocol.Input(frame=1)}, key=long), ONES)
        assert failure.error == "InvalidRequest"


def test_a_retryable_failure_is_not_remembered_for_its_key(alice: Speaker) -> None:
    numbers = [alice.invoke("double", ONES) for _ in range(8)]
    for _ in numbers:
        assert isinstance(alice.receive()[0], protocol.Result)
    key = token_hex(8)
    failure = failed(alice, protocol.Invoke(700, "double", {"x": protocol.Input(frame=1)}, key=key), ONES)
    assert failure.error == "QueueFull"
    assert failure.retry_s
    alice.received(numbers)
    alice.invoke("double", ONES, number=701, key=key)
    assert isinstance(alice.receive()[0], protocol.Result)


# --- credit


def test_credit_is_taken_until_answers_are_received(alice: Speaker, server: Server) -> None:
    other = server.speaker("alice")  # all programs of one client share it
    numbers = [alice.invoke("double", ONES) for _ in range(5)]
    for _ in numbers:
        alice.receive()
    status = other.ask("status")
    assert (status["open"], status["credit_bytes"]) == (5, 5 * len(ONES))
    theirs = [other.invoke("double", ONES) for _ in range(4)]
    answers = [other.receive()[0] for _ in theirs]
    assert [each.error for each in answers if isinstance(each, protocol.Failure)] == ["QueueFull"]
    alice.received(numbers)
    alice.received(numbers)  # twice counts once
    other.received(theirs)
    assert other.quiet()
    status = other.ask("status")
    assert (status["open"], status["credit_bytes"]) == (0, 0)
    other.close()


def test_a_client_that_does_not_read_its_replies_gets_queue_full(serve: Serve) -> None:
    speaker = serve({"limits": {**LIMITS, "requests": 1024}}).speaker()
    data = bytes(15 * len(ONES))
    speaker.reply_to(protocol.Done, protocol.Put(speaker.number(), "large", shape=(len(data),)), data)
    for _ in range(2000):
        speaker.send(protocol.Get(speaker.number(), "large"))
    while not isinstance(answer := speaker.receive()[0], protocol.Failure):
        assert isinstance(answer, protocol.Value)
    assert answer.error == "QueueFull"
    assert answer.retry_s
    speaker.close()


def test_other_questions_take_no_credit(alice: Speaker) -> None:
    numbers = [alice.invoke("double", ONES) for _ in range(8)]
    for _ in numbers:
        assert isinstance(alice.receive()[0], protocol.Result)
    alice.reply_to(protocol.Done, protocol.Put(alice.number(), "besides", "uint8", (len(ONES),)), ONES)
    alice.received(numbers)
    number = alice.number()
    alice.send(protocol.Put(number, "besides", "uint8", (len(ONES),)), ONES)
    numbers = [alice.invoke("double", ONES) for _ in range(8)]
    came = [alice.receive()[0] for _ in range(9)]
    answers = {each.number: each for each in came if not isinstance(each, protocol.Welcome | protocol.Goodbye)}
    assert all(isinstance(answers[each], protocol.Result) for each in numbers)
    assert isinstance(answers[number], protocol.Done)


def test_a_disconnected_client_holds_no_credit_and_finds_its_reply_again(alice: Speaker, server: Server) -> None:
    gone = server.speaker("alice")
    keys = [token_hex(8) for _ in range(4)]
    for key in keys:
        gone.invoke("double", ONES, key=key)
    for _ in keys:
        assert isinstance(gone.receive()[0], protocol.Result)
    gone.close()
    while alice.ask("status")["open"]:
        pass
    back = server.speaker("alice", session=gone.session)
    back.invoke("double", ONES, key=keys[0])
    _, frames = back.receive()
    assert (value_of(frames[0]) == 2).all()
    settle(back)
    back.close()


@pytest.mark.full
def test_a_session_that_does_not_reconnect_is_forgotten(alice: Speaker, server: Server) -> None:
    gone = server.speaker("alice")
    gone.invoke("double", ONES)
    gone.receive()
    gone.close()
    while alice.ask("status")["open"]:  # until lost_s are over
        pass
    assert alice.ask("status")["credit_bytes"] == 0


# --- cancelling and deadlines


def times(count: int) -> dict[str, bytes]:
    """The scalars of `slow` for so many runs of its kernel."""
    return {"times": count.to_bytes(4, "little")}


def slow(results: int = WIDTH) -> kaas.KTask:
    """Runs its kernel as often as its scalar `times`."""
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", results, "float32")
    kernel = kaas.Kernel(STEPS, "scale", 4, 256, [kaas.In(x), kaas.Out(y), kaas.f32(2.0), kaas.u32(WIDTH)])
    return kaas.KTask([kernel], [y], iterations=kaas.Scalar("times", "u32"))


def test_a_request_can_be_cancelled(alice: Speaker) -> None:
    alice.register(slow(), "slow")
    number = alice.invoke("slow", ONES, scalars=times(100_000), deadline_s=5.0)
    alice.send(protocol.Cancel(number))
    answer, _ = alice.receive()
    assert isinstance(answer, protocol.Failure)
    assert (answer.number, answer.error) == (number, "Cancelled")
    alice.send(protocol.Cancel(number))  # it has its answer
    alice.send(protocol.Cancel(12345))
    assert alice.quiet()


def test_a_deadline_ends_a_request(alice: Speaker) -> None:
    alice.register(slow(), "slow")
    number = alice.invoke("slow", ONES, scalars=times(1_000_000), deadline_s=1e-3)
    answer, _ = alice.receive()
    assert isinstance(answer, protocol.Failure)
    assert (answer.number, answer.error) == (number, "DeadlineExceeded")


def test_a_run_continues_while_another_request_waits_for_it(alice: Speaker) -> None:
    key = token_hex(8)
    first, second = (alice.invoke("double", ONES, key=key) for _ in range(2))
    alice.send(protocol.Cancel(first))
    answers = [alice.receive()[0] for _ in range(2)]
    by_number = {each.number: each for each in answers if isinstance(each, protocol.Result | protocol.Failure)}
    assert isinstance(by_number[second], protocol.Result)


# --- faults of a request


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (protocol.Invoke(1, "nothing"), "UnknownFunction"),
        (protocol.Invoke(1, "double"), "MissingInput"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(frame=2)}), "InvalidRequest"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(frame=-1)}), "InvalidRequest"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(frame=0)}), "InvalidRequest"),
        (protocol.Invoke(1, "double", {"z": protocol.Input(frame=1)}), "UnexpectedInput"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(object="mine")}), "UnknownObject"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(frame=1)}, {"s": b"1234"}), "WrongScalar"),
        (protocol.Invoke(1, "double", {"x": protocol.Input(frame=1)}, deadline_s=-1.0), "InvalidRequest"),
        (
            protocol.Invoke(1, "double", {"x": protocol.Input(frame=1)}, deadline_s=float("nan")),
            "InvalidRequest",
        ),
        (
            protocol.Invoke(1, "double", {"x": protocol.Input(frame=1)}, store={"z": "there"}),
            "InvalidRequest",
        ),
        (protocol.Ask(1, "anything"), "InvalidRequest"),
        (protocol.Put(1, "name"), "InvalidRequest"),
        (protocol.Register(1), "InvalidRequest"),
        (protocol.Get(1, "nothing"), "UnknownObject"),
    ],
)
def test_an_invalid_request_gets_its_error(alice: Speaker, message: protocol.FromClient, error: str) -> None:
    number = alice.number()
    changed = msgspec.structs.replace(message, number=number)
    failure = failed(alice, changed, *([ONES] if isinstance(message, protocol.Invoke) else []))
    assert (failure.number, failure.error) == (number, error), failure
    assert failure.message


def test_sizes_and_scalars_are_checked(alice: Speaker) -> None:
    failure = failed(alice, protocol.Invoke(600, "double", {"x": protocol.Input(frame=1)}), ONES[:-1])
    assert failure.error == "WrongSize"
    assert failure.fields["expected_bytes"] == len(ONES)
    alice.register(slow(), "slow")
    for scalars, error in (
        ({}, "MissingScalar"),
        ({"times": b"1"}, "WrongScalar"),
        ({"times": bytes(4)}, "WrongScalar"),
    ):
        message = protocol.Invoke(601, "slow", {"x": protocol.Input(frame=1)}, scalars)
        assert failed(alice, message, ONES).error == error


def test_outputs_are_stored_and_read(alice: Speaker) -> None:
    number = alice.invoke("double", ONES, store={"y": "twice"})
    answer, frames = alice.receive()
    assert (answer, frames) == (protocol.Result(number), [])
    value, frames = alice.reply_to(protocol.Value, protocol.Get(alice.number(), "twice"))
    assert (value.dtype, value.shape, value.bytes) == ("float32", (WIDTH,), len(ONES))
    assert (value_of(frames[0]) == 2).all()
    alice.send(protocol.Invoke(500, "double", {"x": protocol.Input(object="twice")}))
    _, frames = alice.receive()
    assert (value_of(frames[0]) == 4).all()
    alice.reply_to(protocol.Done, protocol.Delete(alice.number(), "twice"))


# --- messages without sense


def test_only_invalid_messages_with_a_number_get_a_failure(alice: Speaker) -> None:
    for header in ({"op": "invoke", "number": 5}, {"op": "nothing", "number": 5}, {"number": 5}):
        failure = failed(alice, msgspec.msgpack.encode(header))
        assert (failure.number, failure.error) == (5, "InvalidRequest")
    for junk in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"op": "received", "numbers": 3}),
    ):
        alice.send(junk)
    assert alice.quiet()


def test_no_program_of_a_name_is_let_in_before_the_data_of_the_revoked_client_is_removed(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        server.manager.kept_out = {"alice"}
        early = server.program()
        server.deliver(early, protocol.Invoke(1, "f"))
        assert not [header for header, _ in early.sent if not isinstance(header, protocol.Failure)]
        assert not server.requests
        server.manager.kept_out = ()
        (welcome, _), *_ = server.program().sent
        assert isinstance(welcome, protocol.Welcome)

    play(tmp_path, scenario)


def test_a_message_that_is_nested_too_deeply_is_dropped(tmp_path: Path) -> None:
    async def scenario(server: FakeServer) -> None:
        deep = b"\x81\xa5other" + b"\x91" * 10_000 + b"\xc0"
        server.manager.receive(server.program(), [deep])
        server.manager.receive(Program(), [deep])
        assert server.manager.dropped == 2

    play(tmp_path, scenario)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_message_disturbs_another_client(server: Server, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    header = bytearray(protocol.encode(message))
    for _ in range(data.draw(st.integers(0, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    frames = data.draw(st.lists(st.binary(max_size=64), max_size=3))
    speaker = hostile(server)
    speaker.send(bytes(header[: data.draw(st.integers(0, len(header)))]), *frames)


MESSAGES: list[protocol.FromClient] = [
    protocol.Hello(protocol.VERSION, "f" * 32),
    protocol.Invoke(3, "double", {"x": protocol.Input(frame=1)}, {"a": b"b"}, "key", 1.0, {"y": "there"}, "00-ab"),
    protocol.Upload(4, "0" * 64, 100, "library"),
    protocol.Chunk(4, "0" * 64, 0),
    protocol.Register(5, "name", {"x": "there"}),
    protocol.Put(6, "name", "float32", (2, 2)),
    protocol.Get(6, "name", 1, 2),
    protocol.Cancel(3),
    protocol.Received((1, 2, 3)),
    protocol.Ask(7, "health"),
]
_HOSTILE: dict[str, Speaker] = {}


def hostile(server: Server) -> Speaker:
    """One connection for all that makes no sense."""
    if server.endpoint not in _HOSTILE:
        _HOSTILE[server.endpoint] = server.speaker("bob")
    return _HOSTILE[server.endpoint]


def test_the_server_still_replies_after_hostile_messages(server: Server, alice: Speaker) -> None:
    for speaker in _HOSTILE.values():
        speaker.close()
    _HOSTILE.clear()
    assert server.process.poll() is None
    alice.invoke("double", ONES)
    assert isinstance(alice.receive()[0], protocol.Result)


def test_a_slow_reader_does_not_delay_another_client(serve: Serve) -> None:
    server = serve({"limits": {"requests": 4}})
    idle, busy = server.speaker("alice"), server.speaker("bob")
    idle.register(scaled(), "f")
    busy.register(scaled(), "f")
    for _ in range(200):
        idle.invoke("f", ONES)  # and never reads
    for _ in range(50):
        number = busy.invoke("f", ONES)
        assert isinstance(busy.receive()[0], protocol.Result)
        busy.received([number])
    assert busy.ask("status")["open"] == 0
    idle.close()
    busy.close()


def test_a_disconnected_slow_reader_gets_its_reply_on_another_connection(serve: Serve) -> None:
    server = serve({"limits": {"requests": 4}})
    idle = server.speaker()
    idle.register(scaled(width=1 << 20), "large")
    idle.reply_to(protocol.Done, protocol.Put(idle.number(), "part", "uint8", (4000,)), bytes(4000))
    ended = idle.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    while not ended.poll(0):
        idle.send(protocol.Get(idle.number(), "part"))
    number = 1_000_000
    value = bytes(4 << 20)
    again = server.speaker(session=idle.session)
    again.invoke("large", value, number=number)
    assert again.receive()[0] == protocol.Result(number, ("y",))
    again.close()
    idle.socket.disable_monitor()
    ended.close()
    idle.close()


def test_a_key_is_no_way_to_run_for_nothing(serve: Serve) -> None:
    alice = serve({"limits": {"answers_bytes": 1}}).speaker()
    alice.register(scaled(), "f")
    for _ in range(3):
        number = alice.invoke("f", ONES, key="the same")
        assert isinstance(alice.receive()[0], protocol.Result)
        alice.received([number])
    (flow,) = alice.ask("usage")["flows"]
    assert (flow["requests"], flow["repeats"]) == (3, 0)
    alice.close()


@pytest.mark.parametrize(("own", "runs"), [(True, 2), pytest.param(False, 1, marks=pytest.mark.full)])
def test_a_programs_own_key_is_forgotten_with_its_answer(serve: Serve, own: bool, runs: int) -> None:
    alice = serve().speaker()
    alice.register(scaled(), "f")
    for _ in range(2):
        number = alice.invoke("f", ONES, key=f"{alice.session}-1" if own else "1")
        assert isinstance(alice.receive()[0], protocol.Result)
        alice.received([number])
    (flow,) = alice.ask("usage")["flows"]
    assert flow["requests"] == runs
    alice.close()


def test_outputs_that_are_stored_take_no_credit(serve: Serve) -> None:
    alice = serve({"limits": LIMITS}).speaker()
    alice.register(slow(32 * WIDTH), "wide")
    for _ in range(2):
        number = alice.invoke("wide", ONES, scalars=times(1), store={"y": "there"})
        assert alice.receive()[0] == protocol.Result(number)
        alice.received([number])
    first, second = (alice.invoke("wide", ONES, scalars=times(10_000_000), store={"y": "there"}) for _ in range(2))
    refused, _ = alice.receive()
    assert isinstance(refused, protocol.Failure)
    assert (refused.number, refused.error) == (second, "QueueFull")
    assert refused.retry_s
    alice.send(protocol.Cancel(first))
    cancelled, _ = alice.receive()
    assert isinstance(cancelled, protocol.Failure)
    assert (cancelled.number, cancelled.error) == (first, "Cancelled")
    failure = failed(alice, protocol.Invoke(900, "wide", {"x": protocol.Input(frame=1)}, times(1)), ONES)
    assert (failure.error, failure.retry_s) == ("InvalidRequest", None)
    alice.close()
