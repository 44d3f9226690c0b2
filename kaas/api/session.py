"""A process's session with one pool, on Ray or without: registered functions, pins, and queries to the pool."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kaas.errors import ConfigMismatch, InvalidRequest, KaasError, PoolStopped
from kaas.wire.packing import ObjectSink

if TYPE_CHECKING:
    from kaas.api.rpc_client import RpcClient
    from kaas.wire.messages import Address
    from kaas.wire.packing import FunctionSignature
    from kaas.wire.status.stats import Stats
    from kaas.wire.status.status import Status


class SessionObjects(ObjectSink, Protocol):
    """The store of objects that outlive a request: Ray's, or the pool itself."""

    def put_all(self, values: tuple[Any, ...]) -> Any:
        """Return one reference to several values, of which some may be references."""
        ...


@dataclass(slots=True, eq=False)
class Session(ABC):
    """This process's session with one pool. Every query raises PoolStopped when the pool is gone.

    Fields:
        ray: True if the pool is on Ray. client: the client of requests that name no other.
        registered: by key, the calls that register functions and eTasks with a restarted pool. pins: the commands for
            this program's pins. gone: the pool has ended for good. pid: of this process. store: the session's objects.
    """

    ray: ClassVar[bool]
    name: str
    client: str
    id: str = field(default_factory=partial(token_hex, 8))
    registered: dict[str, Callable[[], Any]] = field(default_factory=dict)
    pins: dict[tuple[bytes, int | None], tuple[bytes, list[Any]]] = field(default_factory=dict)
    gone: bool = False
    pid: int = field(default_factory=os.getpid)
    store: SessionObjects = field(init=False)
    _calls: RpcClient | None = None
    _connecting: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Check that the pool is there.

        Raises:
            PoolStopped
        """
        if self.gone:
            begins = "kaas.init()" if self.ray else "kaas.init(ray=False)"
            why = "" if self.ray else ": a pool without Ray ends with the program that started it"
            raise PoolStopped(f"pool {self.name!r} is gone{why}; {begins} starts another", pool=self.name)

    @property
    def calls(self) -> RpcClient:
        """The session's calls; the first access connects to the pool.

        Raises:
            PoolStopped
        """
        return self._calls or self._connected()

    def _connected(self) -> RpcClient:
        from kaas.api.rpc_client import RpcClient

        with self._connecting:
            if self._calls is None:
                self._calls = RpcClient.connected(self)
            return self._calls

    def end_calls(self, error: KaasError) -> None:
        """End the calls without a reply with an error."""
        with self._connecting:
            calls = self._calls
        if calls is not None:
            calls.end(error)

    @abstractmethod
    def address(self) -> tuple[Address, str]:
        """Return the pool's address in its present epoch, and this process's node. Wait for a pool that restarts.

        Raises:
            PoolStopped
        """

    @abstractmethod
    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Have the pool, in this epoch of it, hold objects that calls are going to name; do not wait."""

    @abstractmethod
    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Undo `hold`."""

    def alive(self) -> bool:
        """Return True if this process may use the session: one that was forked from its process may not."""
        return os.getpid() == self.pid

    @abstractmethod
    def introduce(self, signature: FunctionSignature) -> None:
        """Register a function with the pool, once; the message needs no reply.

        Raises:
            PoolStopped
        """

    @abstractmethod
    def send(self, signature: FunctionSignature, message: bytes, refs: list[Any]) -> Any:
        """Invoke a function; return the value of `kaas.invoke`."""

    @abstractmethod
    def prefetch(self, message: bytes, refs: list[Any]) -> Any:
        """Send an encoded CacheCommandSpec; return a future of its end, or on Ray an ObjectRef."""

    @abstractmethod
    def cache_command(self, message: bytes, refs: list[Any]) -> None:
        """Send an encoded CacheCommandSpec, and wait until it is done."""

    @abstractmethod
    def status(self) -> Status:
        """Return the pool's status."""

    @abstractmethod
    def stats(self, reset: bool) -> Stats:
        """Return the pool's figures, and begin anew if `reset`."""

    @abstractmethod
    def trace(self, seconds: float) -> bytes:
        """Trace the pool for so many seconds; return the trace, as `kaas.pool.observing.tracing.chrome` takes it."""

    @abstractmethod
    def pardon(self, function: str) -> bool:
        """Lift a function's quarantine; return True if it was in quarantine."""

    @abstractmethod
    def set_share(self, name: str, message: bytes) -> None:
        """Send an encoded ShareSpec, and wait until the pool has it. name: of what has the share, in this session."""

    @abstractmethod
    def shut_down(self) -> None:
        """End the pool, once all waiting callers have their replies."""


@dataclass(slots=True, eq=False)
class CurrentSession:
    """This process's session, if it has one, and the lock for changing it."""

    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def usable(self) -> Session | None:
        """Return the session if its pool is there."""
        session = self.session
        return session if session is not None and not session.gone and session.alive() else None


HERE = CurrentSession()


def program_name() -> str:
    """Return a name for the program of this process, such as the file name of its script."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    if script.name == "ipykernel_launcher.py":
        return "notebook"
    if script.name == "__main__.py":  # python -m package
        return script.parent.name
    return script.name if script.name not in ("", "-c", "-m") else "python"


def needs_ray(what: str, pool: str) -> InvalidRequest:
    """Return the error for a feature (`what`) that only pools on Ray have."""
    return InvalidRequest(f"{what} needs Ray, and pool {pool!r} runs without; kaas.call() runs kTasks there")


def refuse_second_pool(name: str, *, ray: bool) -> None:
    """Check that this process may attach to a pool.

    Raises:
        ConfigMismatch: the process is attached to a pool of another name, or to one of the other kind.
    """
    session = HERE.session
    if session is not None and (session.name != name or session.ray is not ray):
        raise ConfigMismatch(
            f"this process is attached to pool {session.name!r} {'on' if session.ray else 'without'} Ray; "
            "call kaas.shutdown() before another",
            pool=session.name,
            differences=("name",) if session.name != name else ("ray",),
        )
