"""The pool's end of local connections: a listening Unix socket, and one more for each connection."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from kaas.wire import messages
from kaas.wire.connections.connection import Frames
from kaas.wire.connections.stream import Malformed, MessageStream, close_all
from kaas.wire.messages import ToPeer

READS = 8
"""Reads of one connection before other work of the loop has its turn."""
WAITING_AT_MOST = 128
"""Peers that may wait to be let in."""
FULL_S = 0.2
"""No peer is let in for so long after this process had no descriptor left for one."""


class UnixListener:
    """A listener.

    take: is called with each message's channel and frames. ended: with the channel of a peer that has gone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        take: Callable[[UnixChannel, Frames], None],
        ended: Callable[[UnixChannel], None],
    ) -> None:
        self._path = Path(path)
        self._loop, self._take, self._ended = loop, take, ended
        self._channels: set[UnixChannel] = set()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(WAITING_AT_MOST)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        self._open()

    def hide(self) -> None:
        """Remove the socket's name: no new peer finds the listener."""
        self._path.unlink(missing_ok=True)

    def close(self, wait_s: float) -> None:
        """Close. Sent messages still go out, to peers that take them within this time."""
        self._loop.remove_reader(self._fd)
        self._socket.close()
        end_s = time.monotonic() + wait_s
        for channel in list(self._channels):
            channel.end(end_s)

    def _open(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._fd, self._let_in)

    def _let_in(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # the peer has gone already
            return
        except OSError:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(FULL_S, self._open)
            return
        self._channels.add(UnixChannel(self._loop, connected, self._take, self._gone))

    def _gone(self, channel: UnixChannel) -> None:
        self._channels.discard(channel)
        self._ended(channel)


class UnixChannel:
    """One connection."""

    local: ClassVar[bool] = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        take: Callable[[UnixChannel, Frames], None],
        gone: Callable[[UnixChannel], None],
    ) -> None:
        self._loop, self._take, self._gone = loop, take, gone
        self._stream = MessageStream(connected)
        self._fd = connected.fileno()
        self._over = False
        self._flushes = False
        loop.add_reader(self._fd, self._read)

    def send(self, header: ToPeer, frames: Sequence[Any], files: Sequence[int] = ()) -> bool:
        """Send, and return True if the peer is there.

        files: descriptors that go with the message; closed after that.
        """
        if self._over:
            close_all(files)
            return False
        try:
            gone = self._stream.send(messages.encode(header), frames, files)
        except ConnectionError:  # messages that the peer sent before its end are still read
            return False
        if not gone and not self._flushes:
            self._flushes = True
            self._loop.add_writer(self._fd, self._flush)
        return True

    def end(self, by_s: float) -> None:
        """Close. Sent messages still go out, if the peer takes them by this time."""
        writable = select.poll()
        writable.register(self._fd, select.POLLOUT)
        with suppress(ConnectionError):
            while not self._stream.flush() and (left_s := by_s - time.monotonic()) > 0:
                writable.poll(left_s * 1000)
        self._close()

    def _flush(self) -> None:
        try:
            gone = self._stream.flush()
        except ConnectionError:
            gone = True
        if gone:
            self._flushes = False
            self._loop.remove_writer(self._fd)

    def _read(self) -> None:
        """Read all that is there, in parts: uvloop reports only once an end that left bytes unread (EPOLLERR)."""
        for _ in range(READS):
            if self._over:
                return
            try:
                arrived = self._stream.read()
            except (EOFError, Malformed):
                self._close()
                return
            if not self._stream.unread:
                return
            for frames in arrived:
                try:
                    self._take(self, frames)
                except Exception as error:  # noqa: BLE001 - any error of `take`; the next message is taken too
                    self._loop.call_exception_handler({"message": "a message was not taken", "exception": error})
        self._loop.call_soon(self._read)

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._stream.close()
            self._gone(self)
