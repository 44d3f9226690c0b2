"""A pool whose replies a test sends, and the session of a program with a connection to it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import kaas
from kaas.api.rpc_client import RpcClient
from kaas.errors import PoolStopped
from kaas.pool.loop import PoolLoop
from kaas.wire import messages, specs
from kaas.wire.connections.router import Router
from kaas.wire.messages import AnnounceFunction, Submit
from kaas.wire.packing import CallOptions, FunctionSignature, pack
from tests.api.conftest import add_task, numbers
from tests.timeouts import TIMEOUT_S

LARGE = specs.INLINE_INPUT_BYTES  # float32, so four times the limit of a message


class FakePool:
    """One epoch of a pool: messages wait for the test, which replies."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[Any, Any, Sequence[Any]]] = queue.Queue()
        self._loop = PoolLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._router = self._on_loop(self._open)
        self._peer: Any = None

    def _open(self) -> Router:
        router = Router(self._loop, "here", None)
        router.open(lambda *_: lambda *arrived: self.arrived.put(arrived))
        return router

    def _on_loop(self, function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(TIMEOUT_S)

    @property
    def address(self) -> messages.Address:
        address: messages.Address = self._router.address
        return address

    def expect(self, kind: type) -> tuple[Any, Sequence[Any]]:
        """Return the next message, which is of this kind."""
        self._peer, header, frames = self.arrived.get(timeout=TIMEOUT_S)
        assert type(header) is kind, header
        return header, frames

    def expect_submit(self) -> tuple[Submit, Sequence[Any]]:
        """Return it likewise, after the announcement of the function."""
        self._peer, header, frames = self.arrived.get(timeout=TIMEOUT_S)
        return self.expect(Submit) if isinstance(header, AnnounceFunction) else (header, frames)

    def send(self, header: Any, *frames: Any) -> None:
        self._on_loop(lambda: self._router.send(self._peer, header, frames))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._on_loop(self._router.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


@dataclass(eq=False)
class Ref:
    """A reference to an object."""

    number: int

    def binary(self) -> bytes:
        return self.number.to_bytes(28, "little")


class FakeStore:
    is_ref = staticmethod(lambda value: isinstance(value, Ref))

    @staticmethod
    def put(value: Any) -> Any:
        raise AssertionError(f"{value!r} is not attached to the call")

    @staticmethod
    def complete(refs: Sequence[Any]) -> bool:
        assert refs, "no caller asks about no references"
        return True


@dataclass(eq=False)
class FakeSession:
    """A session as calls use it: with one epoch of the pool after the other, and no pool after the last."""

    epochs: list[FakePool]
    name: str = "fake"
    id: str = "0123"
    held: list[tuple[str, list[Any]]] = field(default_factory=list)
    calls: RpcClient | None = None
    moved_on: threading.Event = field(default_factory=threading.Event)
    gone: bool = False

    def address(self) -> tuple[messages.Address, str]:
        if not self.epochs:
            self.moved_on.set()
            raise PoolStopped("pool 'fake' is gone", pool="fake")
        return self.epochs.pop(0).address, "here"

    def check(self) -> None:
        assert not self.gone

    def hold(self, epoch: str, refs: list[Any]) -> None:
        self.held.append((epoch, refs))

    def drop(self, epoch: str, keys: list[bytes]) -> None:
        calls_of(self).drop(keys, epoch)


@pytest.fixture
def pool() -> Iterator[FakePool]:
    pool = FakePool()
    yield pool
    pool.close()


@pytest.fixture
def session(pool: FakePool) -> Iterator[FakeSession]:
    session = FakeSession([pool])
    session.calls = RpcClient.connected(session)
    yield session
    session.calls.end(PoolStopped("the test has ended"))


def sent(session: FakeSession, task: kaas.KTask | None = None, **inputs: Any) -> kaas.Future:
    """Send a call; without inputs, of a kTask with two."""
    task = task or add_task()
    signature, calls = FunctionSignature.of(task), calls_of(session)
    with calls.attachments(FakeStore()) as attachments:
        given = inputs or {"a": numbers(), "b": numbers(seed=1)}
        return calls.submit(signature, *pack(signature, given, None, CallOptions("client"), attachments))


def calls_of(session: FakeSession) -> RpcClient:
    assert session.calls is not None
    return session.calls


def held_blocks(session: FakeSession, pool: FakePool) -> tuple[kaas.Future, Submit]:
    future = sent(session, add_task(LARGE), a=numbers(LARGE), b=numbers(LARGE))
    return future, pool.expect_submit()[0]
