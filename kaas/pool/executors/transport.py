"""The seam between the pool and its workers: the calls, the replies, and the operations of a transport."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kaas.errors import KaasError
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.events import ObjectUse, StartWorker, WorkerKind
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import WorkerInfo


class WorkerLost(Exception):
    """A worker's process ended."""


@dataclass(slots=True)
class WorkerCall:
    """A request as the core sees it; only the transport looks into payload. It is never changed.

    It is made for every request, and frozen it would take three times as long.

    Fields:
        label: its function's name for people. function: the exact name of that function. bound: the same with its
        constants,
            "" if it has none. session: of the program that sent it, "" if that is not known. task: the kTask's key, ""
            of an eTask.
    """

    label: str
    client: str
    deadline_s: float | None
    retries: int
    uses: tuple[ObjectUse, ...] = ()
    payload: Any = None
    function: str = ""
    kind: WorkerKind = WorkerKind.EXECUTOR
    session: str = ""
    bound: str = ""
    task: str = ""

    @property
    def identity(self) -> str:
        """The name of the function in quarantine."""
        return self.function or self.label

    @property
    def flow(self) -> str:
        """The name of the function to policies: with other constants it is another one, and lies on other devices."""
        return self.bound or self.identity


@dataclass(frozen=True, slots=True)
class CacheOrder:
    """A command of a program about caches, as the core sees it; only the transport looks into payload.

    Fields:
        function: the label of the function that it names, "" if it names an object, or everything.
    """

    payload: Any
    function: str = ""
    client: str = ""


class WorkerReply(msgspec.Struct, frozen=True):
    """The reply of a worker: a value or an error, and measurements. lost: why its device is lost, else ""."""

    value: Any = None
    error: KaasError | None = None
    record: RunRecord | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A worker that outlived an earlier process of the pool.

    Fields:
        start: as what it was started. running: calls that it still runs, by slot; `WorkerTransport.run` waits for them.
        cached: keys on its device.
    """

    start: StartWorker
    info: WorkerInfo
    running: Mapping[int, WorkerCall]
    cached: tuple[bytes, ...] = ()


class WorkerTransport(Protocol):
    """The operations on workers, however calls travel."""

    async def start(self, start: StartWorker) -> WorkerInfo:
        """Start a worker, or raise why it does not start."""
        ...

    def run(
        self, worker: int, slot: int, call: WorkerCall
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        """Run a call; fails with WorkerLost when the worker ends first.

        An ImmediateFuture ends in the same turn of the loop.
        """
        ...

    async def cache_command(self, worker: int, order: CacheOrder) -> WorkerReply:
        """Carry out a cache command. Raises WorkerLost as above."""
        ...

    async def prefetch(self, worker: int, named: Mapping[bytes, WorkerCall]) -> WorkerReply:
        """Load objects by key; with each a call that has a reference to it. Raises WorkerLost as above."""
        ...

    async def evict(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Forget objects by key. Raises WorkerLost as above."""
        ...

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Have kept outputs come back, and wait until they have. Raises WorkerLost as above."""
        ...

    async def discard(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Forget kept outputs. Raises WorkerLost as above."""
        ...

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return why it did."""
        ...

    async def stop(self, worker: int) -> str:
        """Let an idle worker end in good order, in a limited time; return what went wrong, or ""."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker's process now; nothing happens if it is gone or never came up."""
        ...
