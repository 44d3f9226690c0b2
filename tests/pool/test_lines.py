"""Lines of peers to the pool's exchange, over real sockets: what is sent arrives, what makes no sense does no harm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kaas.error_codec import decode_error
from kaas.errors import ConfigMismatch, QueueFull
from kaas.pool import messages
from kaas.pool.blocks import Outbox
from kaas.pool.exchange import TURN
from kaas.pool.lines import INWARD, LARGE_BYTES, OUTWARD, PROBE_BYTES, Line, LineLost
from kaas.pool.messages import Cancel, Done, Hello, Refused, Release, Result, Submit, Welcome
from tests.pool.exchanges import NODE, PATIENCE_S, Running

LOCAL = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[Running]:
    running = Running()
    yield running
    running.close()


@pytest.fixture
def open_pool() -> Iterator[Running]:
    """One that other nodes can reach."""
    running = Running(LOCAL)
    yield running
    running.close()


@pytest.fixture
def line(pool: Running) -> Iterator[Line]:
    line = pool.connect()
    yield line
    line.close()


@pytest.fixture
def raw(pool: Running) -> Iterator[Callable[[bytes], zmq.Socket[bytes]]]:
    """Sockets of somebody who keeps to no rule, by their identities."""
    context = zmq.Context()

    def connect(identity: bytes) -> zmq.Socket[bytes]:
        dealer = context.socket(zmq.DEALER)
        if identity:
            dealer.identity = identity
        dealer.rcvtimeo = int(PATIENCE_S * 1000)
        dealer.connect(pool.address.ipc)
        return dealer

    yield connect
    context.destroy(linger=0)


def arrived(pool: Running) -> Any:
    return pool.received.get(timeout=PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    """For what the sockets' own threads do, which tell nobody."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s


def echo(pool: Running) -> None:
    """From now on every request is answered with its own frames."""

    def answer(peer: Any, header: Any, frames: Any) -> None:
        pool.exchange.send(peer, Result(header.number), frames)

    pool.on_receive = answer


def test_messages_go_both_ways(pool: Running, line: Line) -> None:
    peer, hello = pool.greeted.get(timeout=PATIENCE_S)
    assert (peer.role, peer.name, peer.incarnation, peer.pid) == ("client", "a name", "first", os.getpid())
    assert hello.version == messages.VERSION
    line.send(Submit(7), [b"small", b"", b"x" * LARGE_BYTES])
    sender, header, frames = arrived(pool)
    assert sender is peer
    assert header == Submit(7, [])
    assert [bytes(frame) for frame in frames] == [b"small", b"", b"x" * LARGE_BYTES]
    pool.do(lambda: pool.exchange.send(peer, Release(7)))
    assert line.receive(PATIENCE_S) == (Release(7), [])


def test_small_frames_are_bytes_and_large_ones_views(pool: Running, line: Line) -> None:
    echo(pool)
    line.send(Submit(1), [bytearray(LARGE_BYTES - 1), memoryview(bytearray(LARGE_BYTES))])
    for frames in (arrived(pool)[2], line.receive(PATIENCE_S)[1]):  # type: ignore[index]
        small, large = frames
        assert type(small) is bytes
        assert type(large) is memoryview
        assert large.readonly
        assert large.nbytes == LARGE_BYTES


def test_many_messages_keep_their_order(pool: Running, line: Line) -> None:
    echo(pool)
    count = 5 * TURN
    for number in range(count):
        line.send(Submit(number), [b"%d" % number])
    answers = [line.receive(PATIENCE_S) for _ in range(count)]
    assert answers == [(Result(number), [b"%d" % number]) for number in range(count)]


def test_threads_send_over_one_line(pool: Running, line: Line) -> None:
    def send(first: int) -> None:
        for number in range(first, first + 100):
            line.send(Submit(number), [b"%d" % number, b"x"])

    threads = [threading.Thread(target=send, args=(100 * thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    got = [arrived(pool) for _ in range(400)]
    assert sorted(header.number for _, header, _ in got) == list(range(400))
    assert all(frames == [b"%d" % header.number, b"x"] for _, header, frames in got)


def test_several_peers_are_told_apart(pool: Running, line: Line) -> None:
    echo(pool)
    other = pool.connect("executor")
    other.send(Submit(2))
    line.send(Submit(1))
    assert line.receive(PATIENCE_S) == (Result(1), [])
    assert other.receive(PATIENCE_S) == (Result(2), [])
    (one, _, _), (another, _, _) = arrived(pool), arrived(pool)
    assert {one.role, another.role} == {"client", "executor"}
    other.close()


# --- greetings


def test_a_peer_may_be_refused(pool: Running) -> None:
    def refuse(_peer: Any, _hello: Hello) -> None:
        raise QueueFull("too many", limit=3)

    pool.on_greet = refuse
    with pytest.raises(QueueFull, match="too many") as caught:
        pool.connect()
    assert caught.value.limit == 3


def test_what_is_sent_while_a_peer_is_greeted_arrives(pool: Running) -> None:
    pool.on_greet = lambda peer, _hello: pool.exchange.send(peer, Release(3))
    line = pool.connect()
    assert line.receive(PATIENCE_S) == (Release(3), [])
    line.close()


def test_another_version_is_refused(raw: Callable[[bytes], zmq.Socket[bytes]]) -> None:
    peer = raw(b"token" + INWARD)
    peer.send(messages.encode(Hello(messages.VERSION + 1, "client", "", "", 1)))
    header, error = peer.recv_multipart()
    assert messages.decode_to_peer(header) == Refused()
    refusal = decode_error(error)
    assert type(refusal) is ConfigMismatch
    assert refusal.differences == (f"messages: {messages.VERSION}, not {messages.VERSION + 1}",)


def test_memory_is_shared_where_the_pool_can_read_it(
    pool: Running, line: Line, raw: Callable[[bytes], zmq.Socket[bytes]]
) -> None:
    assert line.shares
    assert pool.greeted.get(timeout=PATIENCE_S)[0].shares
    outbox = Outbox()
    secret, other = os.urandom(PROBE_BYTES), os.urandom(PROBE_BYTES)
    probe, pid = outbox.put(secret).block, os.getpid()
    away = msgspec.structs.replace(probe, fd=1_000_000)
    others = msgspec.structs.replace(probe, pid=pid + 1)
    cases = [(probe, secret, True), (probe, other, False), (away, b"", False), (others, secret, False)]
    guessed = [(msgspec.structs.replace(probe, nbytes=nbytes), secret[:nbytes], False) for nbytes in (0, 1)]
    for number, (block, said, shares) in enumerate([*cases, *guessed, (None, b"", False)]):
        peer = raw(b"%d" % number + INWARD)
        peer.send_multipart([messages.encode(Hello(messages.VERSION, "client", "", "", pid, block)), said])
        assert messages.decode_to_peer(peer.recv()) == Welcome(pool.address.life, shares)
    outbox.close()


def test_who_comes_from_another_node_shares_no_memory(open_pool: Running) -> None:
    outbox, address, context = Outbox(), open_pool.address, zmq.Context()
    secret = os.urandom(PROBE_BYTES)
    peer = context.socket(zmq.DEALER)
    peer.identity, peer.rcvtimeo = b"token" + INWARD, int(PATIENCE_S * 1000)
    peer.curve_serverkey, peer.curve_publickey = address.server_key, address.public_key
    peer.curve_secretkey = address.secret_key
    peer.connect(address.tcp)
    hello = Hello(messages.VERSION, "client", "", "", os.getpid(), outbox.put(secret).block)
    peer.send_multipart([messages.encode(hello), secret])
    assert messages.decode_to_peer(peer.recv()) == Welcome(address.life, False)
    context.destroy(linger=0)
    outbox.close()


# --- what makes no sense


def test_what_makes_no_sense_is_dropped(pool: Running, line: Line, raw: Callable[[bytes], zmq.Socket[bytes]]) -> None:
    senders = [raw(b"no token" + INWARD), raw(b""), raw(b"another" + OUTWARD)]
    hello = messages.encode(Hello(messages.VERSION, "client", "", "", 1))
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
    for sender in senders:
        for message in bad:
            sender.send_multipart([message, b"and a frame"])
    for sender in senders[1:]:
        sender.send(hello)
    line.send(Hello(messages.VERSION, "client", "", "", 1))  # not there: it goes out on the other socket
    until(lambda: pool.do(lambda: pool.exchange.dropped) == 3 * len(bad) + 3)
    senders[0].send(hello)
    assert messages.decode_to_peer(senders[0].recv()) == Welcome(pool.address.life, False)
    line.send(Cancel(1))
    assert arrived(pool)[1] == Cancel(1)
    assert pool.faults.empty()


def test_an_error_of_who_receives_keeps_nobody_waiting(pool: Running, line: Line) -> None:
    def fail(_peer: Any, header: Any, _frames: Any) -> None:
        if header == Cancel(1):
            raise ValueError("of mine")

    pool.on_receive = fail
    line.send(Cancel(1))
    line.send(Cancel(2))
    assert [arrived(pool)[1], arrived(pool)[1]] == [Cancel(1), Cancel(2)]
    assert "of mine" in str(pool.faults.get(timeout=PATIENCE_S)["exception"])


def test_who_has_ended_is_sent_nothing_and_heard_no_more(pool: Running, line: Line) -> None:
    peer, _ = pool.greeted.get(timeout=PATIENCE_S)
    other = pool.connect("executor")
    pool.do(lambda: pool.exchange.forget(peer))
    line.send(Cancel(1))
    other.send(Cancel(2))
    assert arrived(pool)[1] == Cancel(2)
    gone, _ = pool.greeted.get(timeout=PATIENCE_S)
    other.close()
    dropped = pool.exchange.dropped

    def noticed() -> bool:
        pool.do(lambda: pool.exchange.send(gone, Release(1)))
        return pool.exchange.dropped > dropped

    until(noticed)


# --- ends


def test_receiving_ends_in_time(line: Line) -> None:
    assert line.receive(0.0) is None
    assert line.receive(0.01) is None


def test_who_waits_is_woken(pool: Running, line: Line) -> None:
    line.wake()
    assert line.receive() is None
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(line.receive()))
    waiting.start()
    line.wake()
    waiting.join(PATIENCE_S)
    assert got == [None]
    echo(pool)
    line.send(Submit(1))
    assert line.receive(PATIENCE_S) == (Result(1), [])


def test_a_closed_line_is_lost(line: Line) -> None:
    lost: list[BaseException] = []

    def receive() -> None:
        try:
            line.receive()
        except LineLost as error:
            lost.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    line.close()
    waiting.join(PATIENCE_S)
    assert "closed" in str(lost[0])
    line.close()
    line.wake()
    for use in (lambda: line.send(Cancel(1)), line.receive):
        with pytest.raises(LineLost, match="closed"):
            use()


def test_nobody_at_an_address(tmp_path: Path) -> None:
    pool = Running(LOCAL, str(tmp_path))
    address = pool.address
    pool.close()
    closed = msgspec.structs.replace(address, tcp="tcp://127.0.0.1:1")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "left"))
    stale.close()
    left = msgspec.structs.replace(address, ipc=f"ipc://{tmp_path}/left")
    with pytest.raises(LineLost, match="ended"):
        Line.connect(left, NODE, "client", "", "", PATIENCE_S)
    gone = msgspec.structs.replace(address, tcp="")
    with pytest.raises(LineLost, match="ended"):
        Line.connect(gone, NODE, "client", "", "", PATIENCE_S)
    with pytest.raises(LineLost, match="no answer"):
        Line.connect(closed, NODE, "client", "", "", 0.1)


POOL = """
import asyncio, os, signal, sys
from kaas.pool.exchange import Exchange
from kaas.pool.messages import Result, encode

async def main():
    exchange = Exchange(asyncio.get_running_loop(), "here", sys.argv[1] if len(sys.argv) > 1 else None)
    def receive(peer, header, frames):
        exchange.send(peer, Result(header.number), frames)
        if header.number < 0:
            exchange.close()
            os.kill(os.getpid(), signal.SIGKILL)
    exchange.open(receive, lambda peer, hello: None)
    print(encode(exchange.address).hex(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A pool's, which writes its address."""
    started = subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.communicate()


def line_to(process: subprocess.Popen[str]) -> Line:
    assert process.stdout is not None
    address = msgspec.msgpack.decode(bytes.fromhex(process.stdout.readline()), type=messages.Address)
    return Line.connect(address, NODE, "client", "a name", "first", PATIENCE_S)


def test_the_end_of_the_pools_process_is_noticed(process: subprocess.Popen[str]) -> None:
    line = line_to(process)
    line.send(Submit(1), [b"x"])
    assert line.receive(PATIENCE_S) == (Result(1), [b"x"])
    process.kill()
    for _ in range(2):
        with pytest.raises(LineLost, match="has ended"):
            line.receive(PATIENCE_S)
    with pytest.raises(LineLost, match="has ended"):
        line.send(Submit(2))
    line.close()


def test_who_only_sends_notices_it_too(process: subprocess.Popen[str]) -> None:
    line = line_to(process)
    process.kill()
    process.wait()
    with pytest.raises(LineLost, match="has ended"):
        send_for_ever(line)
    line.close()


def send_for_ever(line: Line) -> None:
    while True:
        line.send(Submit(1))


def test_the_last_words_of_a_pool_arrive(process: subprocess.Popen[str]) -> None:
    line = line_to(process)
    for number in range(100):
        line.send(Submit(number), [b"x" * LARGE_BYTES])
    line.send(Submit(-1))
    numbers = [line.receive(PATIENCE_S)[0].number for _ in range(101)]  # type: ignore[index, union-attr]
    assert numbers == [*range(100), -1]
    with pytest.raises(LineLost, match="has ended"):
        line.receive(PATIENCE_S)
    line.close()


def test_the_local_socket_is_for_its_user_only_and_goes_with_the_exchange() -> None:
    pool = Running()
    folder = Path(pool.address.ipc.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    pool.close()
    assert not folder.exists()


def test_a_pool_that_hides_keeps_who_is_connected(pool: Running, line: Line) -> None:
    echo(pool)
    pool.do(pool.exchange.hide)
    assert not Path(pool.address.ipc.removeprefix("ipc://")).parent.exists()
    line.send(Submit(1))
    assert line.receive(PATIENCE_S) == (Result(1), [])
    with pytest.raises(LineLost, match="ended"):
        pool.connect()


def test_what_a_killed_pool_has_left_goes_with_the_next(pool: Running, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    address = msgspec.msgpack.decode(bytes.fromhex(process.stdout.readline()), type=messages.Address)
    left, lives = (Path(each.ipc.removeprefix("ipc://")).parent for each in (address, pool.address))
    process.kill()
    process.wait()
    assert left.exists()
    Running().close()
    assert not left.exists()
    assert lives.exists()


def test_a_long_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 100)))
    Running().close()


# --- between nodes


def test_who_comes_from_another_node_needs_the_key(open_pool: Running) -> None:
    echo(open_pool)
    line = open_pool.connect(node="elsewhere")
    assert not line.shares
    line.send(Submit(1), [b"x" * LARGE_BYTES])
    assert line.receive(PATIENCE_S) == (Result(1), [b"x" * LARGE_BYTES])
    line.close()
    public_key, secret_key = zmq.curve_keypair()
    stranger = msgspec.structs.replace(open_pool.address, public_key=public_key, secret_key=secret_key)
    with pytest.raises(LineLost, match="key"):
        Line.connect(stranger, "elsewhere", "client", "", "", PATIENCE_S)
    other = msgspec.structs.replace(open_pool.address, server_key=public_key)
    with pytest.raises(LineLost):
        Line.connect(other, "elsewhere", "client", "", "", 0.2)
    assert open_pool.greeted.qsize() == 1


def test_nothing_that_is_not_encrypted_comes_in(open_pool: Running) -> None:
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    events = plain.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CONNECT_RETRIED
    )
    events.rcvtimeo = int(PATIENCE_S * 1000)
    plain.connect(open_pool.address.tcp)
    plain.send(messages.encode(Hello(messages.VERSION, "client", "", "", 1)))
    assert events.recv_multipart()
    context.destroy(linger=0)
    assert open_pool.greeted.empty()


def test_a_connection_that_breaks_is_made_anew(open_pool: Running) -> None:
    echo(open_pool)
    with Cable(open_pool.address.tcp) as cable:
        address = msgspec.structs.replace(open_pool.address, tcp=cable.end)
        line = Line.connect(address, "elsewhere", "executor", "1", "first", PATIENCE_S)
        peer, _ = open_pool.greeted.get(timeout=PATIENCE_S)
        line.send(Submit(1))
        assert line.receive(PATIENCE_S) == (Result(1), [])
        assert open_pool.greeted.empty()
        cable.cut()
        assert line.receive(PATIENCE_S) == (Welcome(open_pool.address.life, False), [])
        again, _ = open_pool.greeted.get(timeout=PATIENCE_S)
        assert again is peer
        line.send(Done(2))
        answers = [line.receive(PATIENCE_S)]
        if answers == [(Welcome(open_pool.address.life, False), [])]:  # for the other of its two connections
            answers = [line.receive(PATIENCE_S)]
        assert answers == [(Result(2), [])]
        line.close()


def test_a_connection_that_breaks_before_it_stands_is_made_anew(open_pool: Running) -> None:
    echo(open_pool)
    with Cable(open_pool.address.tcp, faults=3) as cable:
        address = msgspec.structs.replace(open_pool.address, tcp=cable.end)
        line = Line.connect(address, "elsewhere", "executor", "1", "first", PATIENCE_S)
        line.send(Submit(1))
        answers: list[Any] = []
        while Result(1) not in answers:
            received = line.receive(PATIENCE_S)
            assert received is not None
            answers.append(received[0])
        assert {type(answer) for answer in answers} <= {Welcome, Result}  # one Welcome after each break
        line.close()


class Cable:
    """Passes on what goes over tcp, until it is cut: then who was connected has to connect again. faults: so many
    connections break at once."""

    def __init__(self, endpoint: str, faults: int = 0) -> None:
        self._faults = faults
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server((LOCAL, 0))
        self._open: list[socket.socket] = []
        self.end = f"tcp://{LOCAL}:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        for end in self._open:
            with suppress(OSError):  # the other end was faster
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return  # it has been taken away
            if self._faults:
                self._faults -= 1
                near.recv(1)
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was cut
