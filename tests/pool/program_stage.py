"""The pool's service over a fake router: a test sends the messages of programs, and sees their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.pool import service
from kaas.pool.on_ray.readiness import Readiness
from kaas.pool.on_ray.ref_leases import SessionRefs
from kaas.pool.service import Service
from kaas.store import SqliteStore
from kaas.wire import messages, specs
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import AnnounceFunction, Block, CallFailure, PeerHello, Submit
from kaas.wire.packing import CallOptions, FunctionSignature, pack
from tests.api.conftest import numbers, scale_task
from tests.pool.fake_workers import FakeWorkers, settle
from tests.timeouts import TIMEOUT_S

TASK = scale_task()
SIGNATURE = FunctionSignature.of(TASK)
SPEC, TASK_BYTES = specs.encode(SIGNATURE.spec), TASK.to_msgpack()
BLOCK = Block(1, 2, 0, 4000)
OUTPUT = b"output"


@dataclass(frozen=True)
class Ref:
    """Takes the place of an ObjectRef."""

    key: bytes

    def binary(self) -> bytes:
        return self.key


X = Ref(b"x" * 28)


class FakePeer(str):
    """The peer of a connection."""

    pid, shares = 1, True


class FakeRouter:
    """A router that keeps the messages sent."""

    address = messages.Address("life", "node", "ipc://nowhere")

    def __init__(self, *_: Any) -> None:
        self.sent: list[tuple[Any, Any, list[Any]]] = []
        self.forgotten: list[Any] = []
        self.receivers: dict[Any, Callable[..., None]] = {}

    def open(self, greet: Callable[..., Callable[..., None]], left: Any) -> None:  # noqa: ARG002
        self._greet = greet

    def greet(self, peer: Any, hello: PeerHello) -> None:
        self.receivers[peer] = self._greet(peer, hello)

    def receive(self, peer: Any, message: Any, frames: Sequence[Any]) -> None:
        self.receivers[peer](peer, message, frames)

    def send(self, peer: Any, header: Any, frames: Sequence[Any] = ()) -> None:
        self.sent.append((peer, header, list(frames)))

    def forget(self, peer: Any) -> None:
        self.forgotten.append(peer)

    def hide(self) -> None: ...

    def close(self) -> None: ...


class FakeExecutors:
    """Keeps the messages for executors."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, Any]] = []

    def greet(self, peer: Any, hello: PeerHello) -> None:
        self.heard.append((peer, hello))

    def receive(self, peer: Any, message: Any, frames: Sequence[Any]) -> None:  # noqa: ARG002
        self.heard.append((peer, message))

    def left(self, peer: Any, pid: int) -> None:
        pass

    async def survivors(self) -> list[Any]:
        return []


class FakeGround:
    """A fake backend. Objects whose keys are in `missing` do not exist yet."""

    node, host, again = "node", None, False

    def __init__(self) -> None:
        self.missing: set[bytes] = set()
        self.objects = SessionRefs(Readiness(asyncio.get_running_loop(), self._exist))
        self.executors, self.transport = FakeExecutors(), FakeWorkers()
        self.here: list[PeerHello] = []

    def _exist(self, refs: Sequence[Ref], *_: Any) -> tuple[list[Ref], list[Ref]]:
        there = [ref for ref in refs if ref.key not in self.missing]
        return there, [ref for ref in refs if ref not in there]

    def workers(self, *_: Any) -> Any:
        return self.executors, self.transport

    def came(self, hello: PeerHello) -> None:
        self.here.append(hello)


class Stage:
    """A pool and its programs."""

    def __init__(self, pool: Service, backend: FakeGround) -> None:
        self.service = pool
        self.backend = backend
        self.workers = backend.transport
        self.peers: dict[str, FakePeer] = {}
        self.router: Any = pool._router

    async def greet(self, peer: str, session: str = "s", incarnation: str = "1") -> None:
        self.router.greet(
            self.peers.setdefault(peer, FakePeer(peer)), PeerHello(messages.VERSION, "client", session, incarnation, 1)
        )

    async def say(self, peer: str, message: Any, *frames: Any) -> None:
        self.router.receive(peer, message, list(frames))
        await settle()

    async def submit(self, number: int, peer: str = "p", attached: Sequence[Any] = (), **options: Any) -> None:
        await self.say(peer, Submit(number, attached), invocation(**options))

    def answers(self) -> list[tuple[Any, Any]]:
        """Return the messages sent since the last call, each with its peer."""
        sent = [(peer, header) for peer, header, _ in self.router.sent]
        self.router.sent.clear()
        return sent

    def error(self) -> KaasError:
        """Return the only message that was sent."""
        [(_, header, frames)] = self.router.sent
        assert isinstance(header, CallFailure)
        self.router.sent.clear()
        return decode_error(frames[0])


def invocation(ref: Any = None, value: Any = None, **caller: Any) -> bytes:
    inputs = {"x": ref or (numbers() if value is None else value)}
    store: Any = RefStore()
    message, _ = pack(SIGNATURE, inputs, {"factor": 2.0}, CallOptions("alice", **caller), store)
    return message


class RefStore:
    """The session of packing: references are `Ref`, and none is known to be complete."""

    def is_ref(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def complete(self, refs: Sequence[Any]) -> bool:  # noqa: ARG002
        return False


Scenario = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario on a pool with one device and a program `p` of session `s`, which has registered its function."""
    monkeypatch.setattr(service, "Router", FakeRouter)

    def run(scenario: Scenario, **config: Any) -> None:
        async def main() -> None:
            backend: Any = FakeGround()
            store = SqliteStore(":memory:")
            store.open()
            pool = await Service.open("test", Config(devices=(Device(),), **config), backend, store)
            await settle()
            stage = Stage(pool, backend)
            await stage.greet("p")
            await stage.say("p", AnnounceFunction(), SPEC, TASK_BYTES)
            await scenario(stage)
            await pool.stop()
            await pool.program_sessions.all_replied()
            pool.close()

        asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))

    return run


def blocks(number: int) -> tuple[Submit, bytes]:
    message = specs.Invocation(
        SIGNATURE.key, "alice", None, 3, True, {}, [], [specs.ObjectInput("x", 0, None, False)], None
    )
    return Submit(number, [BLOCK]), specs.encode(message)


async def _sent(stage: Stage, count: int) -> None:
    while len(stage.router.sent) < count:
        await asyncio.sleep(0)
