"""Connections of peers on the pool's machine to its router: messages arrive, malformed ones do no harm."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack
from typing import Any

import msgspec
import pytest

from kaas.errors import ConfigMismatch, QueueFull
from kaas.pool.loop import PoolLoop
from kaas.wire import messages
from kaas.wire.connections import unix_sockets
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import LARGE_BYTES, PROBE_BYTES, Connection, ConnectionLost, Frames
from kaas.wire.connections.shared_memory import Outbox
from kaas.wire.connections.stream import MessageStream
from kaas.wire.connections.unix_sockets import UnixChannel, UnixListener
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import Address, CallResult, CancelCall, PeerHello, PoolWelcome, Refused, Release, Submit
from tests.open_files import connections_on
from tests.timeouts import TIMEOUT_S, readable, until
from tests.wire.connections.routers import NODE, Running

pytestmark = pytest.mark.processes

LOCAL = "127.0.0.1"
FLOOD = 250
"""Messages, which all fit into the socket and into one read."""


@pytest.fixture
def pool() -> Iterator[Running]:
    running = Running()
    yield running
    running.close()


@pytest.fixture
def open_pool() -> Iterator[Running]:
    """Return a router that other nodes can reach."""
    running = Running(LOCAL)
    yield running
    running.close()


@pytest.fixture
def connection(pool: Running) -> Iterator[Connection]:
    connection = pool.connect()
    yield connection
    connection.close()


class Raw:
    """A peer that follows no rule."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.stream = MessageStream(self.socket)
        self._got: list[list[Any]] = []

    def send(self, *frames: bytes) -> None:
        assert self.stream.send(frames[0], frames[1:])

    def receive(self) -> list[Any]:
        """Return the next message."""
        while not self._got:
            assert readable(self.socket)
            self._got += self.stream.read()
        return self._got.pop(0)

    def is_closed(self) -> bool:
        """Return True if the pool ends this connection."""
        try:
            while True:
                self.receive()
        except EOFError:
            return True


@pytest.fixture
def raw(pool: Running) -> Iterator[Callable[[], Raw]]:
    with ExitStack() as stack:

        def open_raw() -> Raw:
            stranger = Raw(pool.address.path)
            stack.callback(stranger.stream.close)
            return stranger

        yield open_raw


def arrived(pool: Running) -> Any:
    return pool.received.get(timeout=TIMEOUT_S)


def echo(pool: Running) -> None:
    """From now on the pool replies to every request with its own frames."""

    def reply(peer: Any, header: Any, frames: Any) -> None:
        pool.router.send(peer, CallResult(header.number), frames)

    pool.on_receive = reply


def test_messages_are_sent_both_ways(pool: Running, connection: Connection) -> None:
    peer, hello = pool.greeted.get(timeout=TIMEOUT_S)
    assert (peer.role, peer.name, peer.incarnation, peer.pid) == ("client", "a name", "first", os.getpid())
    assert hello.version == messages.VERSION
    connection.send(Submit(7), [b"small", b"", b"x" * LARGE_BYTES])
    sender, header, frames = arrived(pool)
    assert sender is peer
    assert header == Submit(7, [])
    assert [bytes(frame) for frame in frames] == [b"small", b"", b"x" * LARGE_BYTES]
    pool.do(lambda: pool.router.send(peer, Release(7)))
    assert connection.receive(TIMEOUT_S) == (Release(7), [])


def test_small_frames_are_bytes_and_large_ones_views(pool: Running, connection: Connection) -> None:
    echo(pool)
    connection.send(Submit(1), [bytearray(LARGE_BYTES - 1), memoryview(bytearray(LARGE_BYTES))])
    for frames in (arrived(pool)[2], connection.receive(TIMEOUT_S)[1]):  # type: ignore[index]
        small, large = frames
        assert type(small) is bytes
        assert type(large) is memoryview
        assert large.readonly
        assert large.nbytes == LARGE_BYTES


def test_many_messages_keep_their_order(pool: Running, connection: Connection) -> None:
    echo(pool)
    count = 320
    for number in range(count):
        connection.send(Submit(number), [b"%d" % number])
    replies = [connection.receive(TIMEOUT_S) for _ in range(count)]
    assert replies == [(CallResult(number), [b"%d" % number]) for number in range(count)]


def test_threads_send_over_one_connection(pool: Running, connection: Connection) -> None:
    def send(first: int) -> None:
        for number in range(first, first + 100):
            connection.send(Submit(number), [b"%d" % number, b"x"])

    threads = [threading.Thread(target=send, args=(100 * thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    got = [arrived(pool) for _ in range(400)]
    assert sorted(header.number for _, header, _ in got) == list(range(400))
    assert all(frames == [b"%d" % header.number, b"x"] for _, header, frames in got)


def test_several_peers_are_distinguished(pool: Running, connection: Connection) -> None:
    echo(pool)
    other = pool.connect("executor")
    other.send(Submit(2))
    connection.send(Submit(1))
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [])
    assert other.receive(TIMEOUT_S) == (CallResult(2), [])
    (one, _, _), (another, _, _) = arrived(pool), arrived(pool)
    assert {one.role, another.role} == {"client", "executor"}
    other.close()


# --- greetings


def test_a_peer_may_be_refused(pool: Running) -> None:
    def refuse(_peer: Any, _hello: PeerHello) -> None:
        raise QueueFull("too many", limit=3)

    pool.on_greet = refuse
    with pytest.raises(QueueFull, match="too many") as caught:
        pool.connect()
    assert caught.value.limit == 3


def test_a_message_that_is_sent_while_a_peer_is_greeted_arrives(pool: Running) -> None:
    pool.on_greet = lambda peer, _hello: pool.router.send(peer, Release(3))
    connection = pool.connect()
    assert connection.receive(TIMEOUT_S) == (Release(3), [])
    connection.close()


def test_another_version_is_refused(raw: Callable[[], Raw]) -> None:
    peer = raw()
    peer.send(messages.encode(PeerHello(messages.VERSION + 1, "client", "", "", 1)))
    header, error = peer.receive()
    assert messages.decode_to_peer(header) == Refused()
    refusal = decode_error(error)
    assert type(refusal) is ConfigMismatch
    assert refusal.differences == (f"messages: {messages.VERSION}, not {messages.VERSION + 1}",)


def test_a_local_peer_has_the_pid_that_the_system_knows(pool: Running, raw: Callable[[], Raw]) -> None:
    raw().send(messages.encode(PeerHello(messages.VERSION, "client", "", "", os.getppid())))
    peer, hello = pool.greeted.get(timeout=TIMEOUT_S)
    assert peer.pid == hello.pid == os.getpid()


def test_one_process_does_not_take_all_connections(
    pool: Running, raw: Callable[[], Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_sockets, "MOST_OF_A_PROCESS", 3)
    first = [raw() for _ in range(3)]
    assert raw().is_closed()
    first[0].send(messages.encode(PeerHello(messages.VERSION, "client", "", "", os.getpid())))
    pool.greeted.get(timeout=TIMEOUT_S)  # those before stay
    first[1].stream.close()
    until(lambda: not is_refused(raw()))


def is_refused(peer: Raw) -> bool:
    """Return True if the pool ends this connection instead of an answer to its greeting."""
    peer.send(messages.encode(PeerHello(messages.VERSION, "client", "", "", os.getpid())))
    try:
        peer.receive()
    except (EOFError, OSError):
        return True
    return False


def test_a_listener_that_lets_no_peer_in_is_left(tmp_path: Path) -> None:
    path = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as peers:
        listener.bind(path)
        listener.listen(0)
        while True:
            peer = peers.enter_context(socket.socket(socket.AF_UNIX))
            peer.setblocking(False)
            if peer.connect_ex(path) == errno.EAGAIN:
                break
        with pytest.raises(ConnectionLost, match="lets no peer in"):
            connect(Address("epoch", NODE, path), NODE, "client", "a name", "first", 1e-3)


def test_memory_is_shared_where_the_pool_can_read_it(
    pool: Running, connection: Connection, raw: Callable[[], Raw]
) -> None:
    assert connection.shares
    assert pool.greeted.get(timeout=TIMEOUT_S)[0].shares
    outbox = Outbox()
    secret, other = os.urandom(PROBE_BYTES), os.urandom(PROBE_BYTES)
    probe, pid = outbox.put(secret).block, os.getpid()
    away = msgspec.structs.replace(probe, fd=1_000_000)
    others = msgspec.structs.replace(probe, pid=pid + 1)
    cases = [(probe, secret, True), (probe, other, False), (away, b"", False), (others, secret, False)]
    guessed = [(msgspec.structs.replace(probe, nbytes=nbytes), secret[:nbytes], False) for nbytes in (0, 1)]
    for block, said, shares in [*cases, *guessed, (None, b"", False)]:
        peer = raw()
        peer.send(messages.encode(PeerHello(messages.VERSION, "client", "", "", pid, block)), said)
        assert messages.decode_to_peer(peer.receive()[0]) == PoolWelcome(pool.address.epoch, shares)
    outbox.close()


# --- malformed messages


def test_a_peer_whose_message_makes_no_sense_is_disconnected(
    pool: Running, connection: Connection, raw: Callable[[], Raw]
) -> None:
    hello = messages.encode(PeerHello(messages.VERSION, "client", "", "", 1))
    bad = [
        b"",
        b"\xc1",
        b"\x93\x0b",
        b"\x91" * 100_000,
        os.urandom(100),
        hello.replace(b"client", b"\xff\xfeient"),
        messages.encode(Submit(1)),
        bytes(LARGE_BYTES),
    ]
    for message in bad:
        stranger = raw()
        stranger.send(message, b"and a frame")
        assert stranger.is_closed()
    for again in (hello, b"\xc1"):
        welcome = raw()
        welcome.send(hello)
        assert messages.decode_to_peer(welcome.receive()[0]) == PoolWelcome(pool.address.epoch, False)
        welcome.send(again)
        assert welcome.is_closed()
    connection.send(CancelCall(1))
    assert arrived(pool)[1] == CancelCall(1)
    assert pool.faults.empty()


@pytest.mark.parametrize(
    "said",
    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", pack("<IQ", 1, 2**63), pack("<I2Q", 2, 2**63, 2**63)],
)
def test_a_peer_that_sends_no_messages_is_disconnected(
    pool: Running, connection: Connection, raw: Callable[[], Raw], said: bytes
) -> None:
    stranger = raw()
    stranger.socket.sendall(said)
    assert stranger.is_closed()
    echo(pool)
    connection.send(Submit(1))
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [])
    assert pool.faults.empty()


def test_a_message_beyond_the_limit_ends_its_connection(pool: Running, raw: Callable[[], Raw]) -> None:
    peer = raw()
    peer.send(messages.encode(PeerHello(messages.VERSION, "executor", "", "", 1)))
    peer.receive()
    known, _ = pool.greeted.get(timeout=TIMEOUT_S)
    peer.send(messages.encode(Submit(1)), bytes(2 * LARGE_BYTES))
    assert arrived(pool)[1] == Submit(1, [])
    pool.do(lambda: known.channel.limit(LARGE_BYTES))
    peer.socket.sendall(pack("<I2Q", 2, 10, 8 << 30))
    assert peer.is_closed()
    stranger = raw()
    stranger.socket.sendall(pack("<IQ", 1, LARGE_BYTES))
    assert stranger.is_closed()
    assert [pool.left.get(timeout=TIMEOUT_S) for _ in range(2)] == [(known, os.getpid()), (None, os.getpid())]


def test_an_error_of_the_receiver_keeps_no_message_waiting(pool: Running, connection: Connection) -> None:
    def fail(_peer: Any, header: Any, _frames: Any) -> None:
        if header == CancelCall(1):
            raise ValueError("of mine")

    pool.on_receive = fail
    connection.send(CancelCall(1))
    connection.send(CancelCall(2))
    assert [arrived(pool)[1], arrived(pool)[1]] == [CancelCall(1), CancelCall(2)]
    assert "of mine" in str(pool.faults.get(timeout=TIMEOUT_S)["exception"])


def test_a_peer_that_has_ended_is_sent_nothing_and_received_from_no_more(pool: Running, connection: Connection) -> None:
    peer, _ = pool.greeted.get(timeout=TIMEOUT_S)
    other = pool.connect("executor")
    pool.do(lambda: pool.router.forget(peer))
    connection.send(CancelCall(1))
    other.send(CancelCall(2))
    assert arrived(pool)[1] == CancelCall(2)
    gone, _ = pool.greeted.get(timeout=TIMEOUT_S)
    other.close()
    dropped = pool.router.dropped

    def noticed() -> bool:
        pool.do(lambda: pool.router.send(gone, Release(1)))
        return pool.router.dropped > dropped

    until(noticed)


def test_no_peer_is_accepted_while_no_descriptor_is_left_and_then_again(process: subprocess.Popen[str]) -> None:
    path = address_of(process).path
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{process.pid}/fd")), 4096))
    waiting = Raw(path)
    waiting.send(messages.encode(PeerHello(messages.VERSION, "client", "", "", 1)))
    with pytest.raises(ConnectionLost, match="no reply"):
        connect(msgspec.structs.replace(Address("", NODE, path)), NODE, "client", "", "", 0.5)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    assert type(messages.decode_to_peer(waiting.receive()[0])) is PoolWelcome


# --- slow peers


def test_a_peer_that_takes_nothing_delays_no_other(pool: Running, connection: Connection) -> None:
    """Messages to the peer arrive once it reads."""
    echo(pool)
    slow = pool.connect("executor")
    large = os.urandom(1 << 20)
    for number in range(16):
        slow.send(Submit(number), [large])
    connection.send(Submit(100))
    assert connection.receive(TIMEOUT_S) == (CallResult(100), [])
    replies = [slow.receive(TIMEOUT_S) for _ in range(16)]
    assert replies == [(CallResult(number), [large]) for number in range(16)]
    slow.close()


def test_a_peer_that_sends_much_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    """More requests than the pool can run are there; the reply of an executor, which came last, is taken soon."""
    loop, taken = PoolLoop(), list[bytes]()

    def take(_: UnixChannel, frames: Frames) -> None:
        taken.append(bytes(frames[0]))
        if len(taken) == FLOOD + 1:
            loop.stop()

    listener = UnixListener(loop, str(tmp_path / "pool"), take, lambda _: None)
    with ExitStack() as stack:
        streams = []
        for _ in range(2):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(str(tmp_path / "pool"))
            streams.append(MessageStream(peer))
        for number in range(FLOOD):
            assert streams[0].send(b"%d" % number, [])
        assert streams[1].send(b"reply", [])
        loop.run_forever()
        listener.close(0)
    loop.close()
    assert taken.index(b"reply") < FLOOD
    taken.remove(b"reply")
    assert taken == [b"%d" % number for number in range(FLOOD)]


def test_a_pool_that_takes_nothing_delays_no_sender(process: subprocess.Popen[str]) -> None:
    """Small messages stay behind the large ones that wait."""
    connection = connection_to(process)
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(0, 64, 2):
        connection.send(Submit(number), [bytes(LARGE_BYTES)])
        connection.send(Submit(number + 1), [b"small"])
    os.kill(process.pid, signal.SIGCONT)
    replies = [connection.receive(TIMEOUT_S) for _ in range(64)]
    assert [header.number for header, _ in filter(None, replies)] == list(range(64))  # type: ignore[union-attr]
    connection.close()


def test_a_connection_is_closed_while_much_is_left_to_send(process: subprocess.Popen[str]) -> None:
    connection = connection_to(process)
    os.kill(process.pid, signal.SIGSTOP)
    for number in range(64):
        connection.send(Submit(number), [bytes(LARGE_BYTES)])
    connection.close()
    until(lambda: all(thread.name != "kaas-sends" for thread in threading.enumerate()))


def _round_trip(connection: Connection) -> None:
    connection.send(Submit(1))
    connection.receive(TIMEOUT_S)


@pytest.mark.parametrize("during", ["send", "read"])
def test_an_interrupted_connection_is_lost(
    pool: Running, connection: Connection, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sent and the taken part of a message are not known."""
    echo(pool)
    whole = getattr(MessageStream, during)

    def interrupted(stream: MessageStream, *args: Any) -> Any:
        got = whole(stream, *args)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return got

    monkeypatch.setattr(MessageStream, during, interrupted)
    with pytest.raises(KeyboardInterrupt):
        _round_trip(connection)
    for use in (lambda: connection.send(CancelCall(1)), connection.receive):
        with pytest.raises(ConnectionLost, match="interrupted"):
            use()


# --- ends


def test_a_peer_that_ends_with_unread_messages_is_forgotten(pool: Running) -> None:
    """The pool gets one event for the peer's unread messages and its end together."""
    before = connections_on(pool.address.path)
    stranger = Raw(pool.address.path)
    stranger.send(messages.encode(PeerHello(messages.VERSION, "client", "", "", 1)))
    assert messages.decode_to_peer(stranger.receive()[0]) == PoolWelcome(pool.address.epoch, False)
    peer, _ = pool.greeted.get(timeout=TIMEOUT_S)
    assert connections_on(pool.address.path) > before

    def end() -> None:
        pool.router.send(peer, Release(1))
        for number in range(3):
            stranger.send(messages.encode(CancelCall(number)))
        stranger.stream.close()

    pool.do(end)
    assert [arrived(pool)[1] for _ in range(3)] == [CancelCall(number) for number in range(3)]
    until(lambda: connections_on(pool.address.path) == before)


def test_receiving_ends_in_time(connection: Connection) -> None:
    assert connection.receive(0.0) is None
    assert connection.receive(0.01) is None


def test_a_waiting_receiver_is_woken(pool: Running, connection: Connection) -> None:
    connection.wake()
    assert connection.receive() is None
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(connection.receive()))
    waiting.start()
    connection.wake()
    waiting.join(TIMEOUT_S)
    assert got == [None]
    echo(pool)
    connection.send(Submit(1))
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [])


def test_a_closed_connection_is_lost(connection: Connection) -> None:
    lost: list[BaseException] = []

    def receive() -> None:
        try:
            connection.receive()
        except ConnectionLost as error:
            lost.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    connection.close()
    waiting.join(TIMEOUT_S)
    assert "closed" in str(lost[0])
    connection.close()
    connection.wake()
    for use in (lambda: connection.send(CancelCall(1)), connection.receive):
        with pytest.raises(ConnectionLost, match="closed"):
            use()


def test_connecting_to_an_address_without_a_pool_fails(tmp_path: Path) -> None:
    pool = Running(LOCAL, str(tmp_path))
    address = pool.address
    pool.close()
    closed = msgspec.structs.replace(address, tcp="tcp://127.0.0.1:1")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "left"))
    stale.close()
    left = msgspec.structs.replace(address, path=f"{tmp_path}/left")
    with pytest.raises(ConnectionLost, match="ended"):
        connect(left, NODE, "client", "", "", TIMEOUT_S)
    gone = msgspec.structs.replace(address, tcp="")
    with pytest.raises(ConnectionLost, match="ended"):
        connect(gone, NODE, "client", "", "", TIMEOUT_S)
    with pytest.raises(ConnectionLost, match="no reply"):
        connect(closed, NODE, "client", "", "", 0.1)


POOL = """
import asyncio, os, signal, sys
from kaas.wire.connections.router import Router
from kaas.wire.messages import CallResult, encode

async def main():
    router = Router(asyncio.get_running_loop(), "here", sys.argv[1] if len(sys.argv) > 1 else None)
    def receive(peer, header, frames):
        router.send(peer, CallResult(header.number), frames)
        if header.number < 0:
            router.close()
            os.kill(os.getpid(), signal.SIGKILL)
    router.open(lambda peer, hello: receive)
    print(encode(router.address).hex(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Return a pool's process, which writes its address."""
    started = subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.communicate()


def address_of(process: subprocess.Popen[str]) -> Address:
    assert process.stdout is not None
    return msgspec.msgpack.decode(bytes.fromhex(process.stdout.readline()), type=Address)


def connection_to(process: subprocess.Popen[str]) -> Connection:
    return connect(address_of(process), NODE, "client", "a name", "first", TIMEOUT_S)


def test_the_end_of_the_pools_process_is_noticed(process: subprocess.Popen[str]) -> None:
    connection = connection_to(process)
    connection.send(Submit(1), [b"x"])
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [b"x"])
    process.kill()
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="has ended"):
            connection.receive(TIMEOUT_S)
    with pytest.raises(ConnectionLost, match="has ended"):
        connection.send(Submit(2))
    connection.close()


def test_a_peer_that_only_sends_notices_the_end_of_the_pool(process: subprocess.Popen[str]) -> None:
    connection = connection_to(process)
    process.kill()
    process.wait()
    with pytest.raises(ConnectionLost, match="has ended"):
        send_for_ever(connection)
    connection.close()


def send_for_ever(connection: Connection) -> None:
    while True:
        connection.send(Submit(1))


def test_the_last_words_of_a_pool_arrive(process: subprocess.Popen[str]) -> None:
    connection = connection_to(process)
    for number in range(100):
        connection.send(Submit(number), [b"x" * LARGE_BYTES])
    connection.send(Submit(-1))
    numbers = [connection.receive(TIMEOUT_S)[0].number for _ in range(101)]  # type: ignore[index, union-attr]
    assert numbers == [*range(100), -1]
    with pytest.raises(ConnectionLost, match="has ended"):
        connection.receive(TIMEOUT_S)
    connection.close()


def test_the_local_socket_is_for_its_user_only_and_is_removed_with_the_router() -> None:
    pool = Running()
    folder = Path(pool.address.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    pool.close()
    assert not folder.exists()


def test_a_pool_that_hides_keeps_its_connections(pool: Running, connection: Connection) -> None:
    echo(pool)
    pool.do(pool.router.hide)
    assert not Path(pool.address.path).parent.exists()
    connection.send(Submit(1))
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [])
    with pytest.raises(ConnectionLost, match="ended"):
        pool.connect()


def test_the_folder_of_a_killed_pool_is_removed_by_the_next(pool: Running, process: subprocess.Popen[str]) -> None:
    left, lives = (Path(each.path).parent for each in (address_of(process), pool.address))
    process.kill()
    process.wait()
    assert left.exists()
    Running().close()
    assert not left.exists()
    assert lives.exists()


def test_a_long_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 100)))
    Running().close()
