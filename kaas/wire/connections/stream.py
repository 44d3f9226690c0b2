"""Messages over a connected socket: each is the number of its frames and their sizes, then the frames.

A message costs each end one call of the system. ZeroMQ passes every one on to a thread of its own at both ends, which
takes four times as long (docs/architecture.md). Open files may travel with a message (SCM_RIGHTS), so that the receiver
needs no right to look into the sender's process.
"""

from __future__ import annotations

import errno
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from struct import Struct, pack, unpack_from
from typing import Any

import numpy as np

from kaas.errors import OutOfHostMemory
from kaas.wire.connections.connection import LARGE_BYTES, Frames

CHUNK_BYTES = 64 << 10
"""Bytes received at once. A longer message has memory of its own, into which the rest is received."""
ANY_BYTES = 1 << 62
FRAMES_AT_MOST = 1 << 16
"""Frames of a message; bytes that announce more are no message."""
FILES_AT_MOST = 250
"""Files with one message: Linux passes on 253 at once (SCM_MAX_FD)."""
_BUFFERS_AT_ONCE = 512
"""Buffers given to one system call, which takes up to 1024."""

_COUNT = Struct("<I")
_FILES_SHIFT = 20
"""The number of frames stands in the lower bits of a message's first word, the number of files in the upper ones."""
_FILES_BYTES = socket.CMSG_SPACE(FILES_AT_MOST * array("i").itemsize)

TakeFile = Callable[[int], Any]
"""Makes of a received file what readers of its message get, such as a read-only view of its memory, or raises OSError.
The receiver closes the file after that."""


class Malformed(Exception):
    """The bytes are no message, and none after them can be understood."""


class MessageStream:
    """One end of a connected socket. It never waits: bytes that cannot be sent at once are kept for `flush`.

    Fields:
        unread: the last `read` found bytes, so there may be more; False: what comes now is an event of the socket.
        drained: the last `read` found less than it had room for: nothing else was there then but perhaps the end.
        limit_bytes: bytes that announce a longer message are no message.

    A message that this process has no memory for arrives as its header and an OutOfHostMemory. A thread that is
    interrupted within a method, by Ctrl-C, cannot know how much was done, and must close the stream.
    """

    def __init__(self, connected: socket.socket, take_file: TakeFile | None = None) -> None:
        """take_file: for files that come with messages: each is one more frame, the last file directly behind the
        ordinary frames, the first one at the end. The OSError of `take_file` is the frame of a file that cannot be
        taken. None: this end takes no files."""
        connected.setblocking(False)
        self._socket = connected
        self._unsent: deque[memoryview | _WithFiles] = deque()
        self._take_file = take_file
        self._taken: deque[Any] = deque()  # of files whose message may not be whole yet
        self._rest = b""  # of a message that has begun
        self.unread = True
        self.drained = False
        self.limit_bytes = ANY_BYTES
        self._large: _Large | _Skipped | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        for part in self._unsent:
            if isinstance(part, _WithFiles):
                part.close()
        self._unsent.clear()

    def send(self, header: bytes, frames: Sequence[Any] = (), files: Sequence[int] = ()) -> bool:
        """Send a header and its frames, each with contiguous memory. Return True if nothing is left to `flush`.

        `files` are at most FILES_AT_MOST descriptors, which this stream closes once they are sent.

        Raises:
            ConnectionError: the other end has ended.
        """
        if files:
            return self._send_with_files([header, *map(_flat, frames)], files)
        parts = [header, *map(_flat, frames)]
        sizes = tuple(map(len, parts))
        head = pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        if sum(sizes) < LARGE_BYTES:
            whole = b"".join((head, *parts))
            if self._unsent:
                self._unsent.append(memoryview(whole))
                return False
            try:
                sent = self._socket.send(whole)
            except BlockingIOError:
                sent = 0
            if sent == len(whole):
                return True
            self._unsent.append(memoryview(whole)[sent:])
            return False
        waiting = bool(self._unsent)
        self._unsent.extend(memoryview(part) for part in (head, *parts) if len(part))
        return not waiting and self.flush()

    def _send_with_files(self, parts: Sequence[Any], files: Sequence[int]) -> bool:
        """The files go out with the first byte of their message, so that they are there when the message is whole."""
        sizes = tuple(map(len, parts))
        head = pack(f"<I{len(sizes)}Q", len(sizes) | len(files) << _FILES_SHIFT, *sizes)
        waiting = bool(self._unsent)
        self._unsent.append(_WithFiles(memoryview(head), files))
        self._unsent.extend(memoryview(part) for part in parts if len(part))
        return not waiting and self.flush()

    def flush(self) -> bool:
        """Send what is left, as far as it goes. Return True if that was all.

        Raises:
            ConnectionError: the other end has ended.
        """
        unsent = self._unsent
        while unsent:
            first = unsent[0]
            following = takewhile(lambda part: type(part) is memoryview, islice(unsent, 1, _BUFFERS_AT_ONCE))
            parts = [_plain(first), *map(_plain, following)]
            try:
                sent = self._socket.sendmsg(parts, [first.ancillary()] if isinstance(first, _WithFiles) else [])
            except BlockingIOError:
                return False
            if isinstance(first, _WithFiles):
                first.close()
                unsent[0] = first.data
            while sent and sent >= len(part := _plain(unsent[0])):
                sent -= len(part)
                unsent.popleft()
            if sent:
                unsent[0] = _plain(unsent[0])[sent:]
        return True

    def read(self) -> list[Frames]:
        """Return messages that have come, perhaps none; a call reads one part, so that other work has its turn.

        Raises:
            EOFError: the other end has ended, and all that it sent was read.
            Malformed
        """
        self.unread = True
        try:
            if self._large is not None:
                return self._fill(self._large)
            if self._take_file is None:
                data, files = self._socket.recv(CHUNK_BYTES), False
            else:
                data, files = self._receive(self._take_file)
        except BlockingIOError:
            self.unread = False
            self.drained = True
            return []
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        self.drained = len(data) < CHUNK_BYTES and not files  # Linux ends a read behind bytes that files came with
        return self._cut(self._rest + data if self._rest else data)

    def _receive(self, take_file: TakeFile) -> tuple[bytes, bool]:
        """Return some bytes, and True if files came with them."""
        data, ancillary, _, _ = self._socket.recvmsg(CHUNK_BYTES, _FILES_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._take(take_file, array("i", content[: len(content) // 4 * 4]))
        return data, bool(ancillary)

    def _take(self, take_file: TakeFile, files: Sequence[int]) -> None:
        try:
            for file in files:
                try:
                    self._taken.append(take_file(file))
                except OSError as error:  # the memory can shrink, or this process has no room for it
                    self._taken.append(error)
        finally:
            close_all(files)

    def _with_files(self, frames: Frames, count: int) -> Frames:
        if count > len(self._taken):
            raise Malformed
        frames.extend(reversed([self._taken.popleft() for _ in range(count)]))
        return frames

    def _cut(self, data: bytes) -> list[Frames]:
        messages: list[Frames] = []
        at, end = 0, len(data)
        while end - at >= _COUNT.size:
            (word,) = _COUNT.unpack_from(data, at)
            count, files = word & (1 << _FILES_SHIFT) - 1, word >> _FILES_SHIFT
            if not 0 < count <= FRAMES_AT_MOST:
                raise Malformed
            body = at + _COUNT.size + 8 * count
            if body > end:
                break
            sizes = unpack_from(f"<{count}Q", data, at + _COUNT.size)
            following = body + sum(sizes)
            if following - at > self.limit_bytes:
                raise Malformed
            if following > end:
                if following - at > CHUNK_BYTES:
                    self._large = _large(sizes, files, data[body:])
                    at = end
                break
            frames: Frames = []
            for size in sizes:
                frames.append(data[body : body + size])
                body += size
            messages.append(self._with_files(frames, files) if files else frames)
            at = following
        self._rest = data[at:]
        return messages

    def _fill(self, large: _Large | _Skipped) -> list[Frames]:
        got = self._socket.recv_into(large.missing)
        if not got:
            raise EOFError
        self.drained = got < len(large.missing)
        large.received(got)
        if large.missing:
            return []
        self._large = None
        return [self._with_files(large.frames(), large.files)]


def _large(sizes: Sequence[int], files: int, begun: bytes) -> _Large | _Skipped:
    """Return a message of which some bytes have come. files: how many files come with it.

    Raises:
        Malformed
    """
    try:
        return _Large(np.empty(sum(sizes), np.uint8).data, sizes, files, begun)
    except MemoryError:
        return _Skipped(sizes, files, begun)
    except (ValueError, OverflowError):
        raise Malformed from None


class _Large:
    """A message that is still coming, into memory of its own."""

    __slots__ = ("_memory", "_sizes", "files", "missing")

    def __init__(self, memory: memoryview, sizes: Sequence[int], files: int, begun: bytes) -> None:
        self.files = files
        self._memory = memory
        self._sizes = sizes
        self._memory[: len(begun)] = begun
        self.missing = self._memory[len(begun) :]

    def received(self, nbytes: int) -> None:
        self.missing = self.missing[nbytes:]

    def frames(self) -> Frames:
        frames: Frames = []
        at = 0
        for size in self._sizes:
            part = self._memory[at : at + size]
            frames.append(bytes(part) if size < LARGE_BYTES else part.toreadonly())
            at += size
        return frames


class _Skipped:
    """A message that is still coming, and that this process has no memory for: only its header is kept."""

    __slots__ = ("_header", "_left_bytes", "_sizes", "_taken", "files", "missing")

    def __init__(self, sizes: Sequence[int], files: int, begun: bytes) -> None:
        if sizes[0] > CHUNK_BYTES:
            raise Malformed
        self.files = files
        self._sizes = sizes
        self._header = begun[: sizes[0]]
        self._taken = memoryview(bytearray(CHUNK_BYTES))
        self._left_bytes = sum(sizes) - len(begun)
        self.missing = self._taken[: self._left_bytes]

    def received(self, nbytes: int) -> None:
        self._header += self.missing[: min(nbytes, self._sizes[0] - len(self._header))]
        self._left_bytes -= nbytes
        self.missing = self._taken[: self._left_bytes]

    def frames(self) -> Frames:
        reason = os.strerror(errno.ENOMEM)
        message = f"process {os.getpid()} has no room for a message of {sum(self._sizes)} bytes: {reason}"
        return [self._header, OutOfHostMemory(message, reason=reason)]


class _WithFiles:
    """The beginning of a message that files travel with."""

    __slots__ = ("_files", "data")

    def __init__(self, data: memoryview, files: Sequence[int]) -> None:
        self.data = data
        self._files = array("i", files)

    def ancillary(self) -> tuple[int, int, array[int]]:
        return socket.SOL_SOCKET, socket.SCM_RIGHTS, self._files

    def close(self) -> None:
        """Close the files: they are sent, or never will be."""
        close_all(self._files)
        del self._files[:]


def close_all(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _plain(part: memoryview | _WithFiles) -> memoryview:
    return part.data if isinstance(part, _WithFiles) else part


def _flat(frame: Any) -> Any:
    """Return an object's memory as bytes."""
    if type(frame) is bytes:
        return frame
    view = memoryview(frame)
    return view.cast("B") if view.nbytes else b""
