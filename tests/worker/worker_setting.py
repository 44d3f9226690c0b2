"""An executor's worker on a software device, at the end of a real connection; a test is its pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import pytest

from kaas.config import Device
from kaas.errors import KaasError
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor
from kaas.pool.loop import PoolLoop
from kaas.wire import messages, specs
from kaas.wire.connections.router import Peer, Receive, Router
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import ExecutorReply, FromPeer, Named, PeerHello, ToPeer
from kaas.wire.outputs import InputLost
from kaas.wire.packing import CallOptions, FunctionSignature, pack
from kaas.worker.executor_worker import ExecutorWorker
from tests.api.conftest import add_task, scale_task
from tests.timeouts import TIMEOUT_S

CACHE_BYTES = 16 << 20
DEVICE = Device("software", CACHE_BYTES)
T = TypeVar("T")


class Pool:
    """One epoch of a pool: a router on a loop in a thread, and the messages that the worker sends to it."""

    def __init__(self) -> None:
        self.heard: Queue[tuple[FromPeer, Sequence[Any]]] = Queue()
        self.peers: list[Peer] = []
        self.came = threading.Event()
        self._last = 0
        self._loop = PoolLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._router = Router(self._loop, "here")
        self._on_loop(lambda: self._router.open(self._greet))
        self.address = self._router.address

    def _greet(self, peer: Peer, hello: PeerHello) -> Receive:
        assert (hello.role, hello.name) == ("executor", "3")
        self.peers.append(peer)
        self.came.set()
        return lambda _, *message: self.heard.put(message)

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(TIMEOUT_S)

    def send(self, header: ToPeer, *frames: Any, files: Sequence[int] = ()) -> None:
        self._on_loop(lambda: self._router.send(self.peers[-1], header, frames, files))

    def number(self) -> int:
        self._last += 1
        return self._last

    def register(self, signature: FunctionSignature) -> None:
        self.send(messages.RegisterFunction(), specs.encode(signature.spec), signature.task.to_msgpack())

    def run(
        self,
        message: bytes,
        attached: Sequence[messages.ExecutorAttachment] = (),
        *frames: Any,
        files: Sequence[int] = (),
        **options: Any,
    ) -> int:
        number = self.number()
        header = messages.RunInvocation(number, options.pop("slot", 0), attached=attached, **options)
        self.send(header, message, *frames, files=files)
        return number

    def next(self) -> tuple[FromPeer, Sequence[Any]]:
        return self.heard.get(timeout=TIMEOUT_S)

    def done(self, number: int) -> tuple[ExecutorReply, Sequence[Any]]:
        header, frames = self.next()
        assert isinstance(header, ExecutorReply)
        assert header.number == number
        return header, frames

    def error(self, number: int) -> KaasError:
        header, (error,) = self.done(number)
        assert header.failed
        return decode_error(error)

    def outputs(self, number: int) -> list[np.ndarray[Any, Any]]:
        header, frames = self.done(number)
        assert not header.failed, decode_error(frames[0])
        return [np.frombuffer(frame, np.float32) for frame in frames]

    def end(self) -> None:
        self._on_loop(self._router.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class Ref:
    """A reference to an object in this process, which is the store."""

    def __init__(self, key: bytes, value: Any) -> None:
        self.key = key
        self.value = value

    def binary(self) -> bytes:
        return self.key


class Values:
    """The function by which a worker gets the objects of references, once the test provides them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.requested = threading.Semaphore(0)

    def __call__(self, value: Any, made: Mapping[bytes, Any]) -> Any:
        if not isinstance(value, Ref):
            return value
        self.requested.release()
        assert self.open.wait(TIMEOUT_S)
        if isinstance(value.value, InputLost):
            if value.value.key not in made:
                raise value.value
            return made[value.value.key]
        if isinstance(value.value, Exception):
            raise value.value
        return value.value


class Setting:
    """A worker with the pool that it serves."""

    def __init__(self, slots: int = 1) -> None:
        self.values = Values()
        self.left = threading.Event()
        self.introductions: dict[str, tuple[bytes, bytes]] = {}
        self.worker = ExecutorWorker(
            DEVICE,
            {"slots": slots},
            "3",
            "here",
            get=self.values,
            introduce=self.introductions.__getitem__,
            connection_lost=self.left.set,
        )
        self.executor = Executor(
            open_device("software", 1),
            slots=slots,
            cache_bytes=CACHE_BYTES,
            host_cache_bytes=0,
            on_write_back=self.worker.written,
        )
        self.pool = Pool()
        self.worker.serve(self.executor, self.pool.address)

    def close(self) -> None:
        self.values.open.set()
        self.pool.end()
        assert self.left.wait(TIMEOUT_S)
        self.executor.close()


@pytest.fixture
def setting(softgpu: tuple[int, ...]) -> Iterator[Setting]:  # noqa: ARG001 - its devices are in this process
    made = Setting()
    yield made
    made.close()


class NoStore:
    def is_ref(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def put(self, value: Any) -> Ref:
        return Ref(b"unnamed" + bytes(21), value)

    def set_aside(self, data: Any) -> Ref:
        return self.put(np.frombuffer(data, np.uint8))

    def put_all(self, values: Sequence[Any]) -> Ref:
        return self.put(tuple(values))

    def complete(self, refs: Sequence[Any]) -> bool:  # noqa: ARG002 - as a Store's
        return True


SCALE, ADD = FunctionSignature.of(scale_task()), FunctionSignature.of(add_task())


def packed(
    signature: FunctionSignature, inputs: Mapping[str, Any], scalars: Mapping[str, Any] | None = None, **options: Any
) -> tuple[bytes, list[Named], list[Any]]:
    """Return an invocation, the keys that it names, and the references."""
    constants = options.pop("constants", None)
    message, refs = pack(signature, inputs, scalars, CallOptions("alice", **options), NoStore(), constants)
    return message, [Named(ref.binary()) for ref in refs], refs


def named(number: int, value: Any) -> Ref:
    return Ref(number.to_bytes(28, "big"), value)


def order(action: str, *functions: str, objects: bool = False) -> bytes:
    return specs.encode(specs.CacheCommandSpec(action, None, functions, objects, True, "alice"))


@pytest.fixture
def two_slots(softgpu: tuple[int, ...]) -> Iterator[Setting]:  # noqa: ARG001 - as above
    made = Setting(slots=2)
    yield made
    made.close()
