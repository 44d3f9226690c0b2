"""A ZeroMQ socket whose messages are taken by an event loop's callbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic

import zmq

from kaas.wire.connections.connection import Frames
from kaas.wire.connections.zmq_connection import Socket, readable, receive_frames

TURN, TURN_S = 64, 0.001
"""After so many messages, or so much time, other work of the loop has its turn."""

END_S = 1.0
"""The time that the end of a context may take when nothing is left to send."""

_AT_ONCE = int(zmq.DONTWAIT)


class ZmqReader:
    """A ZeroMQ socket whose messages an event loop takes: `take` is called with the frames of each.

    The socket's file descriptor shows only that the socket has changed since its state was last read. So all messages
    that are there are taken each time, and the state is read again after each send, also after one that failed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: Socket,
        take: Callable[[Frames], None],
        receive: Callable[[Socket, int], Frames] = receive_frames,
    ) -> None:
        """receive: the next message's frames, as `receive_frames` has them."""
        self._socket = socket
        self._loop, self._take, self._receive = loop, take, receive
        self._fd = int(socket.getsockopt(zmq.FD))
        self._expected = True
        loop.add_reader(self._fd, self._drain)
        loop.call_soon(self._drain)

    @property
    def behind(self) -> bool:
        """True while messages may wait; False once all that came were taken."""
        return self._expected

    def look(self) -> None:
        """Take the messages that are there; to be called after a send, and after one that failed."""
        if not self._expected and readable(self._socket):
            self._expected = True
            self._loop.call_soon(self._drain)

    def close(self, wait_s: float) -> None:
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=int(wait_s * 1000))

    def _drain(self) -> None:
        self._expected = not self._socket.closed
        ends_s = monotonic() + TURN_S
        try:
            for _ in range(TURN):
                try:
                    frames = self._receive(self._socket, _AT_ONCE)
                except zmq.ZMQError:  # nothing, or nothing any more
                    self._expected = False
                    return
                self._take(frames)
                if self._socket.closed or not readable(self._socket):
                    self._expected = False
                    return
                if monotonic() >= ends_s:
                    return
        finally:  # the loop reports an error of `take`; the next message is taken too
            if self._expected:
                self._loop.call_soon(self._drain)


def end(context: zmq.Context[Socket], wait_s: float) -> None:
    """Close a context after its sockets, with this time to send what is left.

    ZeroMQ (4.3.5) loses count of a connection that breaks while its socket is closed with messages to send, and then
    waits for it for ever. So this function stops waiting after a while.
    """
    ending = threading.Thread(target=context.term, name="kaas-ends", daemon=True)
    ending.start()
    ending.join(wait_s + END_S)
