"""Reads messages of remote clients, and takes no more frames of one than a message may have."""

from __future__ import annotations

import zmq.backend

from kaas.wire.connections.connection import LARGE_BYTES, Frames
from kaas.wire.connections.zmq_connection import Socket

FRAMES = 1024
"""The most frames of a message. A client that sends more is disconnected and blocked for a while, since each frame
takes the loop's time."""

_receive_frame = zmq.backend.Socket.recv  # pyzmq's own method takes three times as long


class FrameReader:
    """Reads the frames of the next message, at most a few too many. The first is ZeroMQ's frame object, which knows the
    sender. Later calls skip the rest in parts, as there may be millions, and return no frames."""

    def __init__(self) -> None:
        self._behind = False

    def __call__(self, socket: Socket, flags: int) -> Frames:
        frame = _receive_frame(socket, flags, False)
        frames: Frames = [] if self._behind else [frame]
        for _ in range(FRAMES + 1):
            if not frame.more:
                break
            frame = _receive_frame(socket, flags, False)
            if not self._behind:
                frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer.toreadonly())
        self._behind = frame.more
        return frames
