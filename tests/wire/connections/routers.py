"""A router with a loop on a thread of its own, for tests that send it messages."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kaas.pool.loop import PoolLoop
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import Connection, Frames
from kaas.wire.connections.router import Peer, Receive, Router
from kaas.wire.messages import Address, FromPeer, PeerHello
from tests.timeouts import TIMEOUT_S

T = TypeVar("T")
NODE = "here"


class Running:
    """A router that notes its peers and their messages.

    Fields:
        greeted, received, left: what came and went, in order. on_greet, on_receive: are called too. faults: errors out
            of them.
    """

    def __init__(self, host: str | None = None, folder: str | None = None) -> None:
        self.greeted: queue.Queue[tuple[Peer, PeerHello]] = queue.Queue()
        self.received: queue.Queue[tuple[Peer, FromPeer, Frames]] = queue.Queue()
        self.left: queue.Queue[tuple[Peer | None, int]] = queue.Queue()
        self.faults: queue.Queue[dict[str, Any]] = queue.Queue()
        self.on_greet: Callable[[Peer, PeerHello], None] = lambda _peer, _hello: None
        self.on_receive: Callable[[Peer, FromPeer, Frames], None] = lambda _peer, _header, _frames: None
        self.loop = PoolLoop()
        self.loop.set_exception_handler(lambda _loop, context: self.faults.put(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.router = self.do(lambda: Router(self.loop, NODE, host, folder))
        self.do(lambda: self.router.open(self._greet, lambda *left: self.left.put(left)))

    @property
    def address(self) -> Address:
        return self.router.address

    def do(self, action: Callable[[], T]) -> T:
        """Call a function on the loop's thread."""

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self.loop).result(TIMEOUT_S)

    def connect(self, role: str = "client", node: str = NODE) -> Connection:
        return connect(self.address, node, role, "a name", "first", TIMEOUT_S)

    def close(self) -> None:
        self.do(self.router.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()

    def _greet(self, peer: Peer, hello: PeerHello) -> Receive:
        self.greeted.put((peer, hello))
        self.on_greet(peer, hello)
        return self._receive

    def _receive(self, peer: Peer, header: FromPeer, frames: Frames) -> None:
        self.received.put((peer, header, frames))
        self.on_receive(peer, header, frames)
