"""Which programs use the pool, and for which clients: when the last one for a client has ended, the client is gone."""

from __future__ import annotations


class Sessions:
    """A session is a process that is attached to the pool, from its attaching to its end."""

    def __init__(self) -> None:
        self._clients: dict[str, set[str]] = {}

    def uses(self, session: str, client: str) -> None:
        """A session sent a request for a client; "" is nobody's session."""
        clients = self._clients.get(session)
        if clients is None:
            if not session:
                return
            clients = self._clients[session] = set()
        clients.add(client)

    def __contains__(self, client: str) -> bool:
        """Whether a session that goes on has sent requests for a client."""
        return any(client in clients for clients in self._clients.values())

    def end(self, session: str) -> tuple[str, ...]:
        """A session ended: the clients that no other one has sent requests for."""
        clients = self._clients.pop(session, set())
        return tuple(sorted(clients.difference(*self._clients.values())))
