"""The process at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
from struct import Struct

_CREDENTIALS = Struct("3i")
"""The pid, user and group of a connection's other end (ucred), in this process's namespaces."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the user of the process at the other end of a connected socket (`unix(7)`, SO_PEERCRED)."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user
