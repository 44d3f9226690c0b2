"""The interface to the processes of executors: `on_processes/hosts.py` and `on_ray/hosts.py` implement it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from kaas.pool.executors.transport import Compilation
from kaas.scheduling.decisions import StartWorker
from kaas.wire.messages import Address
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption


class ExecutorHosts(Protocol):
    """Starts executors, notices their end, and carries values that do not go over the pool's sockets.

    Belongs to one event loop.
    """

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        """Start a process whose executor connects to this address, with its worker's number, or raise."""
        ...

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        """Return the executors of an earlier process of the pool, one for each device; they connect too."""
        ...

    async def compile(self, task: bytes, client: str) -> Compilation:
        """Compile the code of a client's kTask for devices that run it from the user's cache.

        Raises:
            KaasError: no process can be started.
        """
        ...

    def prepare(self, worker: int, refs: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Return what `provide` of these objects should wait for, or None."""
        ...

    def provide(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]] | None:
        """Provide an executor with the objects of the call with this number. None among refs: the executor has it.

        Return None if the host sends the objects itself, else the values of each object, Blocks, HeldParts or buffers,
        for the pool's sockets.

        Raises:
            KaasError: an object is lost.
        """
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that executors share."""
        ...

    def owns(self, worker: int, pid: int) -> bool:
        """Return True if a process on this machine may be this worker."""
        ...

    def worker_of(self, pid: int) -> int:
        """Return the worker that has a process on this machine, or that has started it; -1 if there is none."""
        ...

    async def collect(self, worker: int, deferred: int, count: int) -> Sequence[Any]:
        """Return all outputs of a deferred result, for the caller of the request.

        Raises:
            WorkerLost: the worker ended. KaasError: the outputs cannot be read.
        """
        ...

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return the reason."""
        ...

    def kill(self, worker: int) -> None:
        """Kill a worker's process, if there is one."""
        ...
