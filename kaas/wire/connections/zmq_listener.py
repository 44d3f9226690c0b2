"""The pool's end of connections from other machines: a ZeroMQ socket, for peers with the key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import zmq
from zmq.utils import z85

from kaas.wire.connections.connection import Frames
from kaas.wire.connections.zmq_connection import INWARD, Socket, beat, send_message
from kaas.wire.connections.zmq_reader import ZmqReader, end
from kaas.wire.messages import ToPeer

ZAP = "inproc://zeromq.zap.01"
"""The address at which ZeroMQ asks whether a peer with a key may come in (its RFC 27)."""

_MORE = int(zmq.SNDMORE)

Take = Callable[["ZmqChannel", Frames], None]


class ZmqListener:
    """A listener: a peer must have the key, and the connection is encrypted.

    Fields:
        endpoint: its address. server_key: public. public_key, secret_key: the pair that lets a peer in.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: str, greet: Callable[[ZmqChannel, Frames], object], take: Take
    ) -> None:
        """greet: takes messages from a peer's receiving socket. take: those from its sending socket."""
        self._greet, self._take = greet, take
        self._context: zmq.Context[Socket] = zmq.Context()
        self.server_key, server_secret = zmq.curve_keypair()
        self.public_key, self.secret_key = zmq.curve_keypair()
        admission = self._context.socket(zmq.REP)
        admission.bind(ZAP)  # before the listener: while there are no replies, all peers may come in
        admitting = ZmqReader(loop, admission, lambda frames: _admit(admission, self.public_key, *frames))
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.set_hwm(0)
        socket.router_mandatory = True  # else ZeroMQ silently drops a message to a peer that is gone
        socket.router_handover = True  # a peer may connect again before the loss of its old connection is noticed
        socket.curve_server = True
        socket.curve_secretkey = server_secret
        socket.zap_domain = b"kaas"
        socket.ipv6 = ":" in host
        beat(socket)
        socket.bind(f"tcp://[{host}]:*" if socket.ipv6 else f"tcp://{host}:*")
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._drain = ZmqReader(loop, socket, lambda frames: self._arrived(*frames))
        self._drains = (admitting, self._drain)

    def close(self, wait_s: float) -> None:
        """Close. Sent messages still go out, to peers that take them within this time."""
        for drain in self._drains:
            drain.close(wait_s)
        end(self._context, wait_s)

    def send(self, identity: bytes, header: ToPeer, frames: Sequence[Any]) -> bool:
        """Send, and return True if the peer is there."""
        try:
            self._socket.send(identity, _MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drain.look()
            return False
        send_message(self._socket, header, frames)
        self._drain.look()
        return True

    def _arrived(self, identity: bytes, *frames: Any) -> None:
        # ZeroMQ gives a peer without an identity one that begins with a zero, and may end in any byte.
        take = self._greet if identity.endswith(INWARD) and identity[0] else self._take
        take(ZmqChannel(identity[: -len(INWARD)], self), list(frames))


@dataclass(frozen=True, slots=True)
class ZmqChannel:
    """One connection, by the token of its two sockets."""

    token: bytes
    listener: ZmqListener = field(compare=False)
    local: ClassVar[bool] = False

    def send(self, header: ToPeer, frames: Sequence[Any], files: Sequence[int] = ()) -> bool:  # noqa: ARG002 - for local peers
        """Send, and return True if the peer is there."""
        return self.listener.send(self.token + INWARD, header, frames)

    def limit(self, nbytes: int) -> None:
        """Do nothing: a peer from another node has the keys of a program."""


def _admit(admission: Socket, public_key: bytes, version: bytes, number: bytes, *request: bytes) -> None:
    """Reply to ZeroMQ whether a peer with the key of its request may come in."""
    _domain, _address, _identity, _mechanism, *credentials = request
    knows = credentials == [z85.decode(public_key)]
    admission.send_multipart([version, number, *([b"200", b"OK"] if knows else [b"400", b"no such key"]), b"", b""])
