"""How a process comes on line with its pool."""

from __future__ import annotations

import os

from kaas.wire import messages
from kaas.wire.connections.connection import ENDED, Connection, ConnectionLost
from kaas.wire.messages import Address, Hello


def connect(address: Address, node: str, role: str, name: str, incarnation: str, timeout_s: float) -> Connection:
    """A line on which the pool has said Welcome.

    Args:
        node: where this process is. role, name, incarnation: as in Hello.

    Raises:
        LineLost: there is no pool at this address, or it does not answer in time
        KaasError: it wants nothing of this peer
    """
    hello = Hello(messages.VERSION, role, name, incarnation, os.getpid())
    here = address.node == node and os.path.exists(address.path)
    if here:
        from kaas.wire.connections.unix_connection import UnixConnection

        line: Connection = UnixConnection(address.path)
    elif address.tcp:
        from kaas.wire.connections.zmq_connection import ZmqConnection

        line = ZmqConnection(address, hello)
    else:
        raise ConnectionLost(ENDED)
    try:
        line.introduce(hello, timeout_s, here=here)
    except BaseException:
        line.close()
        raise
    return line
