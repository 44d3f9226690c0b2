"""The pool's core in a loop of a test, over workers made of futures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kaas.config import Config, Device
from kaas.errors import DeviceLost, KaasError
from kaas.executor.cache.tiers import TierUse
from kaas.pool.core import core, runs
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import CacheOrder, Compilation, WorkerCall, WorkerLost, WorkerReply
from kaas.scheduling.decisions import Dispatch, EvictTo, StartWorker
from kaas.share import Scale
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import WorkerInfo
from tests.timeouts import TIMEOUT_S

INFO = WorkerInfo(1, "node", "fake", 1 << 30, (8, 0))
TWO_SLOTS = replace(INFO, slots=2)
TIERS = {"device": TierUse(2, 20, compulsory=1), "store": TierUse(1, 10)}
RECORD = RunRecord({"kernels": 0.25, "total": 0.5}, TIERS, [b"x"], [], 0.25)


class FakeWorkers:
    """A transport whose workers follow the test."""

    def __init__(self, info: WorkerInfo = INFO) -> None:
        self.info = info
        self.runs: list[tuple[int, str, asyncio.Future[WorkerReply]]] = []
        self.dispatches: list[Dispatch] = []
        self.slots: list[int] = []
        self.ends: dict[int, asyncio.Future[str]] = {}
        self.killed: list[int] = []
        self.stopped: list[int] = []
        self.trouble = ""
        self.orders: list[tuple[int, Any]] = []
        self.decided: list[tuple[Any, ...]] = []
        self.victims: list[Sequence[bytes]] = []
        self.refuses: KaasError | None = None
        self.slow: dict[int, asyncio.Future[None]] = {}
        self.refuse_to_start: Exception | None = None
        self.hang_at_start = False
        self.compilations: list[tuple[str, asyncio.Future[Compilation]]] = []

    async def start(self, start: StartWorker) -> WorkerInfo:
        self.ends[start.worker] = asyncio.get_running_loop().create_future()
        if self.refuse_to_start is not None:
            raise self.refuse_to_start
        if self.hang_at_start:
            raise WorkerLost(await asyncio.shield(self.ends[start.worker]))
        return self.info

    async def run(self, call: WorkerCall, dispatch: Dispatch) -> WorkerReply:
        answer: asyncio.Future[WorkerReply] = asyncio.get_running_loop().create_future()
        self.dispatches.append(dispatch)
        self.slots.append(dispatch.slot)
        self.victims.append(dispatch.victims)
        self.runs.append((dispatch.worker, call.label, answer))
        return await answer

    async def compile(self, call: WorkerCall) -> Compilation:
        answer: asyncio.Future[Compilation] = asyncio.get_running_loop().create_future()
        self.compilations.append((call.task, answer))
        return await answer

    async def cache_command(self, worker: int, order: CacheOrder) -> WorkerReply:
        self.orders.append((worker, order.payload))
        if worker in self.slow:
            await self.slow[worker]
        return self.upkept(worker, order.payload)

    async def prefetch(
        self, worker: int, named: Mapping[bytes, WorkerCall], victims: Sequence[bytes] = ()
    ) -> WorkerReply:
        self.decided.append((worker, {key: call.label for key, call in named.items()}))
        self.victims.append(victims)
        return self.upkept(worker)

    async def evict(self, worker: int, keys: Sequence[bytes], to: EvictTo = EvictTo.NOTHING) -> WorkerReply:
        self.decided.append((worker, keys) if to is EvictTo.NOTHING else (worker, keys, to))
        if worker in self.slow:
            await self.slow[worker]
        return self.upkept(worker, WorkerReply(record=RunRecord({}, {}, [], list(keys), 0.0)))

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        self.decided.append((worker, keys))
        if worker in self.slow:
            await self.slow[worker]
        return self.upkept(worker)

    async def discard(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        return await self.evict(worker, keys)

    def upkept(self, worker: int, payload: Any = None) -> WorkerReply:
        if worker in self.ends and self.ends[worker].done():
            raise WorkerLost("gone")
        if self.refuses is not None:
            return WorkerReply(error=self.refuses)
        return payload if isinstance(payload, WorkerReply) else WorkerReply(record=RECORD)

    async def ended(self, worker: int) -> str:
        return await self.ends[worker]

    async def stop(self, worker: int) -> str:
        self.stopped.append(worker)
        return self.trouble

    def kill(self, worker: int) -> None:
        self.killed.append(worker)
        self.die(worker, "killed")

    def die(self, worker: int, why: str) -> None:
        """End a worker, if `start` has begun to make it."""
        end = self.ends.get(worker)
        if end is not None and not end.done():
            end.set_result(why)
        for at, _, answer in self.runs:
            if at == worker and not answer.done():
                answer.set_exception(WorkerLost(why))

    def reply(self, value: Any = "value") -> None:
        """Let the last run end."""
        self.runs[-1][2].set_result(value if isinstance(value, WorkerReply) else WorkerReply(value, record=RECORD))


async def settle() -> None:
    """Let the loop run until nothing more happens."""
    for _ in range(50):
        await asyncio.sleep(0)


def call(label: str = "f", *, deadline_s: float | None = None, retries: int = 3) -> WorkerCall:
    return WorkerCall(label, "alice", deadline_s, retries)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pool end workers right at its run limit, without a grace."""
    monkeypatch.setattr(core, "GRACE_S", 0.0)


class Clock:
    """The time of the running loop, which passes only when the test says so."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        patched.setattr(loop, "time", lambda: self.now_s)

    async def pass_(self, seconds: float) -> None:
        """Let time pass, and the loop do what falls due."""
        self.now_s += seconds
        await settle()


LOST = DeviceLost("illegal address", call="cuStreamSynchronize", code=700)


Scenario = Callable[[Pool, FakeWorkers], Awaitable[None]]


def play(scenario: Scenario, *, devices: int | Scale = 1, workers: FakeWorkers | None = None, **config: Any) -> None:
    async def main() -> None:
        transport = workers or FakeWorkers()
        placed = devices if isinstance(devices, Scale) else (Device(),) * devices
        pool = Pool("test", Config(devices=placed, **config), transport)
        pool.open()
        await settle()
        await scenario(pool, transport)
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


async def begin(submission: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(submission)
    await settle()
    return task


async def failure_of(task: asyncio.Task[Any]) -> BaseException:
    with pytest.raises((KaasError, asyncio.CancelledError)) as caught:
        await task
    return caught.value


TIMED_OUT = DeviceLost("'endless' ran longer than its limit", code=runs.TIMED_OUT)
