"""The interface between the pool and its workers: calls, replies, and the operations of a transport."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kaas.errors import KaasError
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import Dispatch, EvictTo, StartWorker
from kaas.scheduling.events import ObjectUse, WorkerKind
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import WorkerInfo


class WorkerLost(Exception):
    """A worker's process ended."""


class WorkerCall(msgspec.Struct, frozen=True):
    """A request for a worker. Only the transport reads payload.

    Fields:
        label: the function's name for people. function: the function's key.
        bound: the key with the constants, "" if the function has none.
        session: of the program that sent the request, "" if it is unknown. task: the kTask's key, "" of an eTask.
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


@dataclass(frozen=True, slots=True)
class CacheOrder:
    """A command of a program about caches. Only the transport reads payload.

    Fields:
        function: the label of the function in the command, "" if the command is about an object, or all.
    """

    payload: Any
    function: str = ""
    client: str = ""


class WorkerReply(msgspec.Struct, frozen=True):
    """The reply of a worker: a value or an error, and measurements. lost: why the device is lost, else ""."""

    value: Any = None
    error: KaasError | None = None
    record: RunRecord | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Compilation:
    """The end of a compilation.

    Fields:
        error: why there is no code, if a limit has ended the compiler, or the code cannot be written. lost: how another
            process has ended it, else "".
    """

    processor_s: float
    error: KaasError | None = None
    lost: str = ""

    @property
    def made(self) -> bool:
        """True if nothing has ended the compiler too early."""
        return self.error is None and not self.lost


@dataclass(frozen=True, slots=True)
class Survivor:
    """A worker that outlived an earlier process of the pool.

    Fields:
        start: the decision that started it. running: calls that it still runs, by slot; `WorkerTransport.run` waits for
            them. cached: keys of the objects on its device.
    """

    start: StartWorker
    info: WorkerInfo
    running: Mapping[int, WorkerCall]
    cached: tuple[bytes, ...] = ()


class WorkerTransport(Protocol):
    """The operations on workers. Implementations differ in the way that calls travel."""

    async def start(self, start: StartWorker) -> WorkerInfo:
        """Start a worker; raise the cause if it does not start."""
        ...

    def run(
        self, call: WorkerCall, dispatch: Dispatch
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        """Run a call as the policy has decided; fail with WorkerLost if the worker ends first.

        An ImmediateFuture ends in the turn of the loop in which the reply arrives.
        """
        ...

    async def compile(self, call: WorkerCall) -> Compilation:
        """Compile the code of a call's kTask ahead of it, where a process of its own can do so.

        Raises:
            KaasError, OSError: no process can be started.
        """
        ...

    async def cache_command(self, worker: int, order: CacheOrder) -> WorkerReply:
        """Carry out a cache command. Raises WorkerLost as above."""
        ...

    async def prefetch(
        self, worker: int, named: Mapping[bytes, WorkerCall], victims: Sequence[bytes] = ()
    ) -> WorkerReply:
        """Load objects, by key; each call has a reference to its object. Raises WorkerLost as above."""
        ...

    async def evict(self, worker: int, keys: Sequence[bytes], to: EvictTo = EvictTo.NOTHING) -> WorkerReply:
        """Evict objects. Raises WorkerLost as above."""
        ...

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Write back kept outputs, and wait until they have come. Raises WorkerLost as above."""
        ...

    async def discard(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Forget kept outputs. The record's stages have the executor's use so far (`RunStats`). Raises as above."""
        ...

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return the reason."""
        ...

    async def stop(self, worker: int) -> str:
        """Prepare an idle worker for its end, within a time limit; return the error in words, or ""."""
        ...

    def kill(self, worker: int) -> None:
        """Kill a worker's process, if there is one."""
        ...
