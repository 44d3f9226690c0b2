"""Both ends of a local connection, a Unix socket: a peer's, which notices the pool's end at once, and the pool's."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from kaas.wire import messages
from kaas.wire.connections.adaptive_poll import AdaptivePoll
from kaas.wire.connections.connection import CLOSED, ENDED, INTERRUPTED, Connection, ConnectionLost, Frames, T
from kaas.wire.connections.peer import peer_of
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.connections.stream import CHUNK_BYTES, Malformed, MessageStream, TakeFile, close_all
from kaas.wire.messages import FromPeer, PeerHello, ToPeer

AT_ONCE = 64
"""Reads and messages of one connection before others have their turn. A program that sends more than the pool can run
must not keep it from the replies of executors, which would then wait for their next requests."""
WAITING_AT_MOST = 128
"""Peers that may wait to be let in."""
MOST_OF_A_PROCESS = 256
"""Connections of one process. A program has one for each session, an executor has one."""
FULL_S = 0.2
"""No peer is let in for so long after this process had no descriptor left for one."""
RETRY_S = 0.01
"""A peer tries again to connect so long after too many others waited to be let in: a system call has no time limit."""


class UnixConnection(Connection):
    """A connection over a Unix socket.

    A thread that is interrupted in it, by Ctrl-C, may have sent or taken half a message. The connection is then lost:
    its owner makes a new one, and sends again.

    Threads in `serve` wait for the same edge-triggered epoll. An event wakes one of them, the last that began to wait,
    and none while a working thread can take it: no thread has to be woken to wait in another's place. The event also
    reports the end of the other side. Without an end, a thread that has read less than there was room for has read
    all that there is, and an event reports later bytes.
    """

    def __init__(self, path: str, timeout_s: float, take_file: TakeFile | None = None) -> None:
        """Connect. Wait for timeout_s at most while too many peers wait to be let in. take_file: see `connect`.

        Raises:
            ConnectionLost: no process listens there, or it lets no peer in.
        """
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        until_s = time.monotonic() + timeout_s
        while (failed := self._socket.connect_ex(path)) == errno.EAGAIN and time.monotonic() < until_s:
            time.sleep(RETRY_S)
        if failed:
            self._socket.close()
            raise ConnectionLost("the pool lets no peer in" if failed == errno.EAGAIN else ENDED)
        self._stream = MessageStream(self._socket, take_file or Inbox().map_file)
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._flushes, self._lost = False, ""
        self._arrived: deque[Frames] = deque()
        self._bell = os.eventfd(0)
        self._poll = select.epoll()
        for fd in (self._socket.fileno(), self._bell):
            self._poll.register(fd, select.EPOLLIN)
        self._users = 1  # the threads in serve, and the owner until it closes the connection
        self._idle = 0  # threads in serve that take messages and run nothing
        self._more = -1
        self._unread, self._ends = True, False  # by the events that threads in serve have had
        self._serving_poll: AdaptivePoll | None = None  # of the threads in serve

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:
        with self._sending:
            if self._lost:
                raise ConnectionLost(self._lost)
            try:
                gone = self._stream.send(messages.encode(header), frames)
            except ConnectionError:
                raise ConnectionLost(ENDED) from None
            except BaseException:
                self._break()
                raise
            if not gone and not self._flushes:
                self._flushes = True
                threading.Thread(target=self._flush, name="kaas-sends", daemon=True).start()

    def _flush(self) -> None:
        """Send the bytes that the pool has been too slow to take."""
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        gone = False
        while not gone:
            writable.poll()
            with self._sending:
                try:
                    gone = bool(self._lost) or self._stream.flush()
                except ConnectionError:  # the next send or receive notices
                    gone = True
                self._flushes = not gone

    def receive(self, timeout_s: float | None = None) -> tuple[ToPeer, Frames] | None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            if self._early:
                self.in_hand = True
                return self._early.popleft()
            while not self._arrived:
                if self._lost:
                    raise ConnectionLost(self._lost)
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                ready = self._poll.poll(left_s)
                if not ready:
                    return None
                for fd, _ in ready:
                    if fd != self._bell:
                        self._read()
                    elif os.eventfd_read(fd) and not (self._arrived or self._lost):
                        return None
            if self._lost == CLOSED:
                raise ConnectionLost(CLOSED)
            self.in_hand = True
            header, *frames = self._arrived.popleft()
        return messages.decode_to_peer(header), frames

    def serve(self, take: Callable[[ToPeer, Frames], T | None]) -> Iterator[T]:
        with self._receiving:
            if self._lost == CLOSED:
                raise ConnectionLost(CLOSED)
            self._users += 1
            if self._serving_poll is None:
                self._more = os.eventfd(0)
                self._serving_poll = AdaptivePoll([self._socket.fileno(), self._more])
            poll = self._serving_poll
        try:
            while True:
                yield self._served_by(poll, take)
        finally:
            self._leave()

    def _served_by(self, poll: AdaptivePoll, take: Callable[[ToPeer, Frames], T | None]) -> T:
        events = 0
        while True:
            with self._receiving:
                if events:
                    self._unread = True
                    self._ends = self._ends or bool(events & select.EPOLLRDHUP)
                else:
                    self._idle += 1
                while (message := self._next()) is not None:
                    given = take(*message)
                    if given is not None:
                        self._idle -= 1
                        self._fill()
                        if self._arrived or self._lost:  # this thread has had their event
                            os.eventfd_write(self._more, 1)
                        return given
                idle = self._idle == self._users - 1
            events = poll.wait(idle)

    def _next(self) -> tuple[ToPeer, Frames] | None:
        """Return a message that has come, if one is not taken yet.

        Raises:
            ConnectionLost
        """
        if self._early:
            return self._early.popleft()
        self._fill()
        if self._lost and (self._lost == CLOSED or not self._arrived):
            raise ConnectionLost(self._lost)
        if not self._arrived:
            return None
        header, *frames = self._arrived.popleft()
        return messages.decode_to_peer(header), frames

    def _fill(self) -> None:
        """Read until a message is there, or nothing is left: else no event reports later bytes."""
        while not self._arrived and self._unread and not self._lost:
            self._read()
            self._unread = self._ends or not self._stream.drained

    def _read(self) -> None:
        try:
            self._arrived.extend(self._stream.read())
        except EOFError:
            self._lost = self._lost or ENDED
        except Malformed:
            self._lost = self._lost or "the pool sent bytes that are no message"
        except BaseException:
            self._break()
            raise

    def _break(self) -> None:
        """Give the connection up: the number of bytes that were sent or received is not known."""
        self._lost = self._lost or INTERRUPTED
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wake(self) -> None:
        with self._sending:
            if self._lost != CLOSED:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._sending:
            if self._lost == CLOSED:
                return
            self._lost = CLOSED
            os.eventfd_write(self._bell, 1)
            with suppress(OSError):  # the pool was faster
                self._socket.shutdown(socket.SHUT_RDWR)  # a flushing thread goes on
        self._leave()

    def _leave(self) -> None:
        """Leave `serve`; the last thread closes the epoll."""
        with self._receiving:
            self._users -= 1
            if self._users:
                if self._serving_poll is not None:
                    os.eventfd_write(self._more, 1)  # the next one may have to leave too
                return
            self._poll.close()
            self._stream.close()
            os.close(self._bell)
            if self._serving_poll is not None:
                self._serving_poll.close()
                os.close(self._more)

    def _greet(self, hello: PeerHello, frames: Sequence[Any]) -> None:
        self.send(hello, frames)


# --- the pool's end


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
        channel = UnixChannel(self._loop, connected, self._take, self._gone)
        if channel.pid and sum(each.pid == channel.pid for each in self._channels) >= MOST_OF_A_PROCESS:
            channel._close()  # code that has taken an executor over could take all descriptors of the pool
        else:
            self._channels.add(channel)

    def _gone(self, channel: UnixChannel) -> None:
        self._channels.discard(channel)
        self._ended(channel)


class UnixChannel:
    """One connection. pid: that of the other end, as this process sees it, or 0 if it does not."""

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
        self.pid, _ = peer_of(connected)
        self._fd = connected.fileno()
        self._over = self._flushes = self._goes_on = False
        self._arrived: Iterator[Frames] = iter(())
        self.limit(CHUNK_BYTES)  # until it is known whose connection it is
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

    def limit(self, nbytes: int) -> None:
        """Take a longer message for the end of the connection."""
        self._stream.limit_bytes = nbytes

    def end(self, by_s: float) -> None:
        """Close. Sent messages still go out, if the peer takes them by this time."""
        writable = select.poll()
        writable.register(self._fd, select.POLLOUT)
        with suppress(ConnectionError):
            while not self._stream.flush() and (left_s := by_s - time.monotonic()) > 0:
                writable.poll(left_s * 1000)
        self._close()

    def _flush(self) -> None:
        with suppress(ConnectionError):
            if not self._stream.flush():
                return
        self._flushes = False
        self._loop.remove_writer(self._fd)

    def _read(self) -> None:
        """Take what is there, in parts: uvloop reports only once an end that left bytes unread (EPOLLERR)."""
        for _ in range(AT_ONCE):
            if self._over:
                return
            frames = next(self._arrived, None)
            if frames is not None:
                try:
                    self._take(self, frames)
                except Malformed:
                    self._close()
                except Exception as error:  # noqa: BLE001 - any error of `take`; the next message is taken too
                    self._loop.call_exception_handler({"message": "a message was not taken", "exception": error})
                continue
            try:
                self._arrived = iter(self._stream.read())
            except (EOFError, Malformed):
                self._close()
                return
            if not self._stream.unread:
                return
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._read()

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._stream.close()
            self._gone(self)
