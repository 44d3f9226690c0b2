"""Messages over a connected socket: each is the number of its frames and their sizes, then the frames.

A message costs each end one call of the system. ZeroMQ passes every one on to a thread of its own at both ends, which
takes four times as long (docs/architecture.md).
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from struct import Struct, pack, unpack_from
from typing import Any

import numpy as np

from kaas.pool.lines import LARGE_BYTES, Frames

CHUNK_BYTES = 64 << 10
"""That are received at once; a message with more has memory of its own, into which the rest is received."""
FRAMES_AT_MOST = 1 << 16
"""Of a message; what claims to have more is none."""
_BUFFERS_AT_ONCE = 512
"""Of which a system call takes 1024."""

_COUNT = Struct("<I")


class Malformed(Exception):
    """What came is no message, and nothing behind it can be understood."""


class Stream:
    """One end. It never waits: what cannot be sent at once is kept for `flush`.

    Fields:
        unread: the last `read` found something, so there may be more; False: what comes now is news of the socket's.
        drained: the last `read` found less than it had room for: what else was there then is at most the end.

    Who is interrupted within a method, by Ctrl-C, cannot know how much was done, and must close it.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent: deque[memoryview] = deque()
        self._rest = b""  # of a message that has begun
        self.unread = True
        self.drained = False
        self._large: _Large | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, header: bytes, frames: Sequence[Any] = ()) -> bool:
        """A header and its frames, each of them anything with contiguous memory. Whether nothing is left to `flush`.

        Raises:
            ConnectionError: the other end has ended
        """
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

    def flush(self) -> bool:
        """Send what is left, as far as it goes. Whether that was all.

        Raises:
            ConnectionError: the other end has ended
        """
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.sendmsg(list(islice(unsent, _BUFFERS_AT_ONCE)))
            except BlockingIOError:
                return False
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = unsent[0][sent:]
        return True

    def read(self) -> list[Frames]:
        """The messages that have come, maybe none; in bits, so that others have their turn.

        Raises:
            EOFError: the other end has ended, and all that it sent was read
            Malformed
        """
        self.unread = True
        try:
            if self._large is not None:
                return self._fill(self._large)
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            self.unread = False
            self.drained = True
            return []
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        self.drained = len(data) < CHUNK_BYTES
        return self._cut(self._rest + data if self._rest else data)

    def _cut(self, data: bytes) -> list[Frames]:
        messages: list[Frames] = []
        at, end = 0, len(data)
        while end - at >= _COUNT.size:
            (count,) = _COUNT.unpack_from(data, at)
            if not 0 < count <= FRAMES_AT_MOST:
                raise Malformed
            body = at + _COUNT.size + 8 * count
            if body > end:
                break
            sizes = unpack_from(f"<{count}Q", data, at + _COUNT.size)
            following = body + sum(sizes)
            if following > end:
                if following - at > CHUNK_BYTES:
                    self._large = _Large(sizes, data[body:])
                    at = end
                break
            frames: Frames = []
            for size in sizes:
                frames.append(data[body : body + size])
                body += size
            messages.append(frames)
            at = following
        self._rest = data[at:]
        return messages

    def _fill(self, large: _Large) -> list[Frames]:
        got = self._socket.recv_into(large.missing)
        if not got:
            raise EOFError
        self.drained = got < len(large.missing)
        large.missing = large.missing[got:]
        if large.missing:
            return []
        self._large = None
        return [large.frames()]


class _Large:
    """A message while it comes, into memory of its own."""

    __slots__ = ("_memory", "_sizes", "missing")

    def __init__(self, sizes: Sequence[int], begun: bytes) -> None:
        try:
            self._memory = np.empty(sum(sizes), np.uint8).data
        except (MemoryError, ValueError, OverflowError):
            raise Malformed from None
        self._sizes = sizes
        self._memory[: len(begun)] = begun
        self.missing = self._memory[len(begun) :]

    def frames(self) -> Frames:
        frames: Frames = []
        at = 0
        for size in self._sizes:
            part = self._memory[at : at + size]
            frames.append(bytes(part) if size < LARGE_BYTES else part.toreadonly())
            at += size
        return frames


def _flat(frame: Any) -> Any:
    """Its memory as bytes."""
    if type(frame) is bytes:
        return frame
    view = memoryview(frame)
    return view.cast("B") if view.nbytes else b""
