"""Messages over a socket arrive whole and in order, in any pieces; malformed bytes are refused."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import OutOfHostMemory
from kaas.wire.connections.connection import LARGE_BYTES
from kaas.wire.connections.stream import CHUNK_BYTES, FRAMES_AT_MOST, Malformed, MessageStream
from tests.open_files import memory_files

Ends = tuple[MessageStream, MessageStream]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = (MessageStream(each) for each in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def moved(source: MessageStream, sink: MessageStream, count: int) -> list[list[Any]]:
    """Send so many messages; the rest of them goes out as there is room."""
    got: list[list[Any]] = []
    while len(got) < count:
        source.flush()
        got += sink.read()
    return got


SIZES = st.integers(0, 100) | st.sampled_from([LARGE_BYTES - 1, LARGE_BYTES, CHUNK_BYTES * 3 + 1, 1 << 20])


@given(st.lists(st.lists(SIZES, min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 2**32))
def test_messages_arrive_as_they_were_sent(sizes: list[list[int]], seed: int) -> None:
    one, other = (MessageStream(each) for each in socket.socketpair())
    made = random.Random(seed)
    messages = [[made.randbytes(size) for size in message] for message in sizes]
    for header, *frames in messages:
        one.send(header, frames)
    assert moved(one, other, len(messages)) == messages
    assert other.read() == []
    one.close()
    other.close()


def memory_file(content: bytes) -> int:
    file = os.memfd_create("test")
    os.write(file, content)
    return file


def content_of(file: int) -> memoryview:
    return memoryview(os.pread(file, 100, 0))


@given(st.lists(st.tuples(st.lists(SIZES, max_size=3), st.integers(0, 3)), min_size=1, max_size=6))
def test_files_arrive_with_their_message(plan: list[tuple[list[int], int]]) -> None:
    files_before = memory_files()
    near, far = socket.socketpair()
    one, other = MessageStream(near), MessageStream(far, content_of)
    expected = []
    for number, (sizes, count) in enumerate(plan):
        contents = [b"%d of %d" % (file, number) for file in range(count)]
        frames = [bytes(size) for size in sizes]
        one.send(b"header", frames, [memory_file(content) for content in contents])
        expected.append([b"header", *frames, *reversed(contents)])
    assert moved(one, other, len(plan)) == expected
    one.close()
    other.close()
    assert near.fileno() == far.fileno() == -1
    assert memory_files() == files_before


def test_a_file_that_cannot_be_mapped_fails_its_frame_alone() -> None:
    def mapped(file: int) -> memoryview:
        content = content_of(file)
        if content.tobytes() == b"bad":
            raise OSError(errno.ENOMEM, "no room")
        return content

    files_before = memory_files()
    near, far = socket.socketpair()
    one, other = MessageStream(near), MessageStream(far, mapped)
    one.send(b"first", [b"frame"], [memory_file(content) for content in (b"good", b"bad", b"good too")])
    one.send(b"second", [], [memory_file(b"good")])
    (header, frame, third, failed, first), second = moved(one, other, 2)
    assert (header, frame, third, first) == (b"first", b"frame", b"good too", b"good")
    assert isinstance(failed, OSError)
    assert failed.errno == errno.ENOMEM
    assert second == [b"second", b"good"]
    assert memory_files() == files_before
    one.close()
    other.close()


def test_files_that_were_never_sent_are_closed(ends: Ends) -> None:
    one, _ = ends
    while one.send(b"header", [bytes(CHUNK_BYTES)]):
        pass
    file = memory_file(b"unsent")
    one.send(b"header", [], [file])
    one.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_files_that_the_receiver_does_not_take_are_not_kept(ends: Ends) -> None:
    one, other = ends
    files_before = memory_files()
    one.send(b"header", [], [memory_file(b"unwanted")])
    with pytest.raises(Malformed):
        moved(one, other, 1)
    assert memory_files() == files_before


def test_a_message_without_room_arrives_as_its_header(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ends
    large = bytes(1 << 20)
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", full)
        one.send(b"header" * 1000, [b"small", large])
        one.send(b"second", [b"small"])
        (header, error), second = moved(one, other, 2)
    assert header == b"header" * 1000
    assert isinstance(error, OutOfHostMemory)
    assert f"{len(header) + 5 + len(large)} bytes" in error.message
    assert second == [b"second", b"small"]


@pytest.mark.parametrize("begun", [0, 3, 6, 1000])
def test_the_header_of_a_message_without_room_may_arrive_in_parts(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    end = MessageStream(far)
    body = b"header" + bytes(CHUNK_BYTES)
    near.send(pack("<I2Q", 2, 6, CHUNK_BYTES) + body[:begun])
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", full)
        assert end.read() == []
    near.send(body[begun:10_000])
    assert end.read() == []
    near.send(body[10_000:] + pack("<IQ", 1, 4) + b"next")
    ((header, error),) = end.read() or end.read()
    assert header == b"header"
    assert isinstance(error, OutOfHostMemory)
    assert end.read() == [[b"next"]]
    near.close()
    end.close()


def full(*_: object) -> None:
    raise MemoryError


def test_bytes_may_arrive_one_by_one() -> None:
    near, far = socket.socketpair()
    end = MessageStream(far)
    frames = [b"header", b"", b"x" * 300]
    raw = pack("<I3Q", 3, *map(len, frames)) + b"".join(frames)
    got: list[list[Any]] = []
    for byte in raw * 2:
        near.send(bytes([byte]))
        got += end.read()
    assert got == [frames, frames]
    near.close()
    end.close()


def test_small_frames_are_bytes_and_large_ones_views(ends: Ends) -> None:
    one, other = ends
    array = np.arange(LARGE_BYTES, dtype=np.float32).reshape(4, -1)
    one.send(b"", [np.float32(1), bytearray(3), np.empty((0, 4)), array])
    ((header, scalar, three, none, large),) = moved(one, other, 1)
    assert (header, scalar, three, none) == (b"", np.float32(1).tobytes(), bytes(3), b"")
    assert {type(each) for each in (header, scalar, three, none)} == {bytes}
    assert large.readonly
    np.testing.assert_array_equal(np.frombuffer(large, np.float32).reshape(4, -1), array)


def test_messages_beyond_the_socket_buffer_are_sent_later_in_order(ends: Ends) -> None:
    one, other = ends
    count = 0
    while one.send(b"%d" % count, [bytes(1000)]):
        count += 1
    assert not one.send(b"last", [bytes(LARGE_BYTES)])
    assert not one.flush()
    headers = [frames[0] for frames in moved(one, other, count + 2)]
    assert headers == [*(b"%d" % number for number in range(count + 1)), b"last"]
    assert one.flush()


def test_the_end_arrives_after_all_messages(ends: Ends) -> None:
    one, other = ends
    other.send(b"never read")
    one.send(b"last words")
    one.close()
    assert other.read() == [[b"last words"]]
    for _ in range(2):
        with pytest.raises(EOFError):
            other.read()
    with pytest.raises(ConnectionError):
        other.send(b"x")


def test_the_end_may_arrive_within_a_message() -> None:
    for size in (100, 10 * CHUNK_BYTES):
        near, far = socket.socketpair()
        end = MessageStream(far)
        near.send(pack("<IQ", 1, size) + b"begun")
        near.close()
        assert end.read() == []
        with pytest.raises(EOFError):
            end.read()
        end.close()


@pytest.mark.parametrize("head", [pack("<I", 0), pack("<I", FRAMES_AT_MOST + 1), pack("<IQ", 1, 2**63), b"GET /"])
def test_a_malformed_head_is_refused(head: bytes) -> None:
    near, far = socket.socketpair()
    end = MessageStream(far)
    near.send(head)
    with pytest.raises(Malformed):
        end.read()
    near.close()
    end.close()


@given(st.binary(max_size=200))
def test_no_received_bytes_do_harm(data: bytes) -> None:
    near, far = socket.socketpair()
    end = MessageStream(far)
    near.send(data + b"x")
    with suppress(Malformed):
        assert all(isinstance(frames, list) for frames in end.read())
    near.close()
    end.close()
