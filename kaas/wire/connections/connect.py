"""Connecting a process to its pool."""

from __future__ import annotations

import os

from kaas.wire import messages
from kaas.wire.connections.connection import ENDED, Connection, ConnectionLost
from kaas.wire.connections.stream import TakeFile
from kaas.wire.messages import Address, PeerHello


def connect(
    address: Address,
    node: str,
    role: str,
    name: str,
    incarnation: str,
    timeout_s: float,
    take_file: TakeFile | None = None,
) -> Connection:
    """Return a connection on which the pool has replied with PoolWelcome.

    `node` is where this process runs; `role`, `name` and `incarnation` are as in PeerHello. The pool has timeout_s to
    let this process in, and as long again to reply. take_file: for the files of messages; None: they are shared memory,
    and are mapped.

    Raises:
        ConnectionLost: there is no pool at this address, or no reply in time.
        KaasError: the pool refuses this peer.
    """
    hello = PeerHello(messages.VERSION, role, name, incarnation, os.getpid())
    here = address.node == node and os.path.exists(address.path)
    if here:
        from kaas.wire.connections.unix_sockets import UnixConnection

        connection: Connection = UnixConnection(address.path, timeout_s, take_file)
    elif address.tcp:
        from kaas.wire.connections.zmq_connection import ZmqConnection

        connection = ZmqConnection(address, hello)
    else:
        raise ConnectionLost(ENDED)
    try:
        connection.introduce(hello, timeout_s, here=here)
    except BaseException:
        connection.close()
        raise
    return connection
