"""Where remote clients come in: a ZeroMQ socket on this machine's loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from kaas.pool.lines import Frames
from kaas.pool.node_door import _Drain
from kaas.remote import wire


class RemoteDoor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        keys: None,
        server_keys: None,
        receive: Callable[[RemoteChannel, Frames], None],
        *,
        frame_bytes: int = 1 << 20,
        queued: int = 1000,
    ) -> None:
        self._receive = receive
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True
        socket.set_hwm(queued)
        socket.maxmsgsize = frame_bytes
        socket.bind(f"tcp://{host}:{port or '*'}")
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._drain = _Drain(
            loop, socket, lambda frames: self._receive(RemoteChannel(frames[0], "local", self), frames[1:])
        )

    def send(self, identity: bytes, header: wire.FromServer, frames: Sequence[Any]) -> bool:
        try:
            self._socket.send(identity, zmq.SNDMORE | zmq.DONTWAIT)
        except zmq.ZMQError:
            return False
        self._socket.send(wire.encode(header), (zmq.SNDMORE if frames else 0) | zmq.DONTWAIT)
        for index, frame in enumerate(frames):
            self._socket.send(frame, zmq.SNDMORE if index < len(frames) - 1 else 0, copy=False)
        self._drain.look()
        return True

    def close(self, wait_s: float) -> None:
        self._drain.close(wait_s)
        self._context.term()


@dataclass(frozen=True, slots=True)
class RemoteChannel:
    identity: bytes
    user: str
    door: RemoteDoor = field(compare=False, repr=False)

    def send(self, header: wire.FromServer, frames: Sequence[Any] = ()) -> bool:
        return self.door.send(self.identity, header, frames)

    def drop(self) -> None:
        """Nothing."""
