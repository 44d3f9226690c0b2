"""Workers of eTasks as Ray actors: one for each client and function that has a device to itself."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kaas.config import Device
from kaas.errors import ETaskFailed, InputFailed, KaasError
from kaas.pool import wire
from kaas.pool.etask_actor import WATCH, ETaskActor
from kaas.pool.etasks import ETaskPayload, ETasks
from kaas.pool.events import StartWorker
from kaas.pool.outputs import Packed, Stored
from kaas.pool.readiness import Readiness
from kaas.pool.results import fetched
from kaas.pool.status import WorkerInfo
from kaas.pool.transport import Reply

CLOSE_LIMIT_S = 5.0
"""How long an instance's own `close` may take."""


class ETaskWorkers:
    """What `RayTransport` hands over of workers of this kind."""

    def __init__(self, etasks: ETasks, readiness: Readiness) -> None:
        self._etasks = etasks
        self._readiness = readiness
        self._actors: dict[int, Any] = {}
        self._start_s: dict[int, float] = {}  # what a worker took to start, until its first call is charged with it

    def __contains__(self, worker: int) -> bool:
        return worker in self._actors

    def actor(self, start: StartWorker, device: Device, options: dict[str, Any]) -> Any:
        """A worker's actor, which Ray begins to start."""
        etask = self._etasks[start.function]
        decorate: Any = ray.remote  # whose types do not know concurrency groups
        actor_class = decorate(concurrency_groups={WATCH: 1}, max_concurrency=1, **options)(ETaskActor)
        self._actors[start.worker] = actor_class.remote(device, etask.code, etask.spec.path)
        return self._actors[start.worker]

    async def start(self, worker: int, actor: Any) -> WorkerInfo:
        """Raises whatever kept it from starting."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            info: WorkerInfo = await actor.start.remote()
        except RayTaskError as error:
            raise error.cause from None
        self._start_s[worker] = clock() - began
        return info

    async def run(self, worker: int, payload: ETaskPayload) -> Reply:
        """Raises RayActorError when the worker ends first."""
        method = self._actors[worker].call.options(num_returns=2)
        ref, last = method.remote(payload.message, payload.refs)
        try:
            answer = wire.decode_etask_answer(await last)
        except RayTaskError as error:  # what its call returned, and only Ray could carry, Ray could not
            failure = wire.ETaskFailure(str(error.cause), type(error.cause).__name__, str(error), b"")
            return Reply(error=_failed(payload.label, failure))
        stages = {"run": answer.seconds}
        if worker in self._start_s:
            stages["start"] = self._start_s.pop(worker)
        record = wire.RunRecord(stages, {}, [], [], sum(stages.values()))
        if answer.failure is not None:
            return Reply(error=_failed(payload.label, answer.failure), record=record)
        if answer.value:
            return Reply(Packed(answer.value), record=record)
        incomplete = self._readiness.of([ref])
        if incomplete is not None:
            await incomplete
        return Reply(Stored(fetched, ref), record=record)

    async def close(self, worker: int) -> str:
        """Let an idle worker's instance put things in order; what went wrong, or ""."""
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                trouble: str = await self._actors[worker].close.remote()
        except TimeoutError:
            return f"its close() took more than {CLOSE_LIMIT_S:g} s"
        except RayError as error:
            return f"its process ended: {error}" if isinstance(error, RayActorError) else str(error)
        return trouble

    def forget(self, worker: int) -> None:
        self._actors.pop(worker, None)
        self._start_s.pop(worker, None)


def _failed(label: str, failure: wire.ETaskFailure) -> KaasError:
    """The error that the caller gets; what caused it is not looked into here."""
    error: KaasError
    if failure.by_input:
        error = InputFailed(f"an argument of {label!r} failed: {failure.message}", task=label, reason=failure.message)
    else:
        message = f"{label!r} raised {failure.message}"
        error = ETaskFailed(message, function=label, error_type=failure.error_type, traceback=failure.traceback)
    if failure.cause:
        error.seal_cause(failure.cause)
    return error
