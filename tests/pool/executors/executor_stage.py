"""The transport of executors over a fake router: a test sends the executors' messages, and sees those that they get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kaas.errors import KaasError
from kaas.pool.executors.executors import Executors
from kaas.pool.executors.payloads import Payload
from kaas.pool.executors.residents import Residents
from kaas.pool.executors.transport import WorkerCall, WorkerLost, WorkerReply
from kaas.pool.functions import RegisteredFunction
from kaas.scheduling.decisions import Dispatch, StartWorker
from kaas.scheduling.events import WorkerKind
from kaas.wire import specs
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.connections.stream import close_all
from kaas.wire.messages import Address, PeerHello
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption
from tests.api.conftest import scale_task
from tests.pool.fake_workers import INFO, settle
from tests.timeouts import TIMEOUT_S

TASK = scale_task()
FUNCTION = RegisteredFunction.of(specs.FunctionSpec(TASK.key), TASK, b"its kTask")
LARGE = RegisteredFunction(
    "large", "large", FUNCTION.spec, FUNCTION.introduction, FUNCTION.outputs * 2, (1 << 20,) * 2, False, {}
)
OUTPUT = bytes(FUNCTION.output_bytes[0])
RECORD = specs.RunRecord({"kernels": 1.0}, {}, [], [], 0.5)
START = StartWorker(3, WorkerKind.EXECUTOR, 1)
ADDRESS = Address("life", "node", "ipc:///nowhere")
MESSAGE = b"an invocation"


@dataclass(frozen=True)
class Ref:
    """Names an object, as Ray's references do."""

    name: bytes

    def binary(self) -> bytes:
        return self.name


@dataclass(frozen=True)
class FakeChannel:
    local: bool = True
    limits: list[int] = field(default_factory=list, compare=False)

    def limit(self, nbytes: int) -> None:
        self.limits.append(nbytes)


@dataclass(frozen=True)
class FakePeer:
    name: str = "peer"
    channel: FakeChannel = FakeChannel()
    pid: int = 1


PEER = FakePeer()


class FakeRouter:
    """A router that keeps messages. sent: peer, header, frames. files: contents of the last message's files."""

    address = ADDRESS

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Any, list[Any]]] = []
        self.files: list[bytes] = []
        self.forgotten: list[Any] = []
        self.inbox = Inbox()

    def send(self, peer: Any, header: Any, frames: Sequence[Any] = (), files: Sequence[int] = ()) -> None:
        self.sent.append((peer, header, list(frames)))
        self.files = [os.pread(file, 100, 0).rstrip(b"\0") for file in files]
        close_all(files)

    def forget(self, peer: Any) -> None:
        self.forgotten.append(peer)

    def headers(self) -> list[Any]:
        return [header for _, header, _ in self.sent]


class FakeHosts:
    """Hosts of a test. has: the values that they provide. deferred_results: by number. strangers: processes that are
    no workers."""

    def __init__(self) -> None:
        self.started: asyncio.Future[WorkerInfo] = asyncio.get_running_loop().create_future()
        self.adoptions: list[Adoption] = []
        self.adopting = asyncio.Event()
        self.has: list[list[Any]] | KaasError | None = None
        self.prepared: asyncio.Future[Any] | None = None
        self.supplied: list[tuple[int, int, Sequence[Any]]] = []
        self.deferred_results: dict[int, list[Any]] = {}
        self.killed: list[int] = []
        self.strangers: set[int] = set()

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        assert (start, address) == (START, ADDRESS)
        return await self.started

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        assert address == ADDRESS
        await self.adopting.wait()
        return self.adoptions

    def owns(self, worker: int, pid: int) -> bool:
        return worker == START.worker and pid not in self.strangers

    def worker_of(self, pid: int) -> int:
        return START.worker if pid == PEER.pid else -1

    held_bytes = 0

    def prepare(self, worker: int, refs: Sequence[Any]) -> asyncio.Future[Any] | None:  # noqa: ARG002
        return self.prepared

    def provide(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]] | None:
        self.supplied.append((worker, number, refs))
        if isinstance(self.has, KaasError):
            raise self.has
        return self.has

    async def collect(self, worker: int, deferred: int, count: int) -> Sequence[Any]:
        assert worker == START.worker
        if deferred not in self.deferred_results:
            raise WorkerLost("gone with its deferred results")
        assert len(self.deferred_results[deferred]) == count
        return self.deferred_results.pop(deferred)

    async def ended(self, worker: int) -> str:
        return f"{worker} ended"

    def kill(self, worker: int) -> None:
        self.killed.append(worker)


class Stage:
    """Executors with worker 3 on device 1, with fakes of the router and the hosts."""

    def __init__(self, *, walls: bool = False) -> None:
        self.router, self.hosts = FakeRouter(), FakeHosts()
        self.residents = Residents(asyncio.get_running_loop())
        self.executors = Executors(self.router, self.hosts, self.residents, walls=walls)  # type: ignore[arg-type]

    async def open(self, peer: FakePeer = PEER) -> None:
        self.hosts.started.set_result(INFO)
        starting = await begin(self.executors.start(START))
        self.greet(peer)
        assert await starting is INFO

    def greet(self, peer: Any = PEER, worker: int = 3) -> None:
        self.executors.greet(peer, PeerHello(1, "executor", str(worker), "once", 1))

    def leave(self, peer: Any, pid: int) -> None:
        self.executors.left(peer, pid)

    def say(self, message: Any, *frames: Any, peer: Any = PEER) -> None:
        self.executors.receive(peer, message, frames)

    async def run(self, payload: Any, slot: int = 0) -> asyncio.Task[WorkerReply]:
        return await begin(self.executors.run(WorkerCall("f", "alice", None, 0, payload=payload), Dispatch(0, 3, slot)))


async def begin(work: Awaitable[Any]) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(work)
    await settle()
    return task


def play(scenario: Callable[[Stage], Awaitable[None]], opened: bool = True, *, walls: bool = False) -> None:
    async def main() -> None:
        stage = Stage(walls=walls)
        if opened:
            await stage.open()
        await scenario(stage)

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def small(*refs: Any, frames: Sequence[Any] = (MESSAGE,), **options: Any) -> Payload:
    return Payload(FUNCTION, frames, refs, **options)
