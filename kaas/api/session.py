"""A process's way to one pool: what it has told the pool, and what it can ask there, by Ray or without."""

from __future__ import annotations

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
    """Where objects are that outlive a request: Ray's store, or the pool itself."""

    def put_all(self, values: tuple[Any, ...]) -> Any:
        """One reference to several values, of which some may be references."""
        ...


@dataclass(slots=True, eq=False)
class Session(ABC):
    """This process's way to one pool. What is asked there raises PoolStopped when the pool is gone.

    Fields:
        ray: whether the pool is on Ray. client: whom requests are billed to that name nobody else.
        registered: how what a pool that starts again has to be told is told, by its key. pins: the orders for what this
            program has pinned. gone: the pool has ended for good.
    """

    ray: ClassVar[bool]
    name: str
    client: str
    id: str = field(default_factory=partial(token_hex, 8))
    registered: dict[str, Callable[[], Any]] = field(default_factory=dict)
    pins: dict[tuple[bytes, int | None], tuple[bytes, list[Any]]] = field(default_factory=dict)
    gone: bool = False
    _calls: RpcClient | None = None
    _connecting: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Check that the pool is there.

        Raises:
            PoolStopped
        """
        if self.gone:
            raise PoolStopped(f"pool {self.name!r} is gone; kaas.init() starts another", pool=self.name)

    @property
    def calls(self) -> RpcClient:
        """Its calls; the first who asks for them connects to the pool.

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
        """Those without an answer get this one."""
        with self._connecting:
            calls = self._calls
        if calls is not None:
            calls.end(error)

    @abstractmethod
    def address(self) -> tuple[Address, str]:
        """Where the pool is in its present epoch, and the node of this process. Waits for a pool that starts again.

        Raises:
            PoolStopped
        """

    @abstractmethod
    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Have the pool, in this epoch of it, hold objects that calls are going to name; waits for nothing."""

    @abstractmethod
    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Undo it."""

    @property
    @abstractmethod
    def store(self) -> SessionObjects:
        """Its objects."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether what it stands on is still there: Ray, for a pool on Ray."""

    @abstractmethod
    def introduce(self, signature: FunctionSignature) -> None:
        """Tell the pool of a function, once; the message needs no answer.

        Raises:
            PoolStopped
        """

    @abstractmethod
    def send(self, signature: FunctionSignature, message: bytes, refs: list[Any]) -> Any:
        """What `kaas.invoke` gives."""

    @abstractmethod
    def prefetch(self, message: bytes, refs: list[Any]) -> Any:
        """Send an encoded CacheCommandSpec; gives what can be waited for."""

    @abstractmethod
    def upkeep(self, message: bytes, refs: list[Any]) -> None:
        """Send an encoded CacheCommandSpec, and wait until it is done."""

    @abstractmethod
    def status(self) -> Status:
        """Return the pool's status."""

    @abstractmethod
    def stats(self, reset: bool) -> Stats:
        """Return the pool's figures, and begin anew if `reset`."""

    @abstractmethod
    def trace(self, seconds: float) -> bytes:
        """What the pool does for so long, as `kaas.pool.observing.tracing.chrome` takes it."""

    @abstractmethod
    def pardon(self, function: str) -> bool:
        """Lift a function's quarantine; return True if it was in quarantine."""

    @abstractmethod
    def shut_down(self) -> None:
        """End the pool, once all who waited have their answers."""


@dataclass(slots=True, eq=False)
class CurrentSession:
    """This process's session, if it has one, and who may change that."""

    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


HERE = CurrentSession()


def program_name() -> str:
    """What a person calls the program of this process: the file name of its script, say."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    if script.name == "ipykernel_launcher.py":
        return "notebook"
    if script.name == "__main__.py":  # python -m package
        return script.parent.name
    return script.name if script.name not in ("", "-c", "-m") else "python"


def needs_ray(what: str, pool: str) -> InvalidRequest:
    """Of a pool without Ray something is asked that only one on Ray can do."""
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
