"""Workers of eTasks as Ray actors: one for each client and function that has a device to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kaas.config import Config
from kaas.errors import DeviceUnavailable, ETaskFailed, InputFailed, KaasError
from kaas.pool.executors.registered_etasks import ETaskPayload, ETasks
from kaas.pool.executors.transport import WorkerCall, WorkerLost, WorkerReply
from kaas.pool.on_ray.fetching import fetched
from kaas.pool.on_ray.holders import HolderPlace, RayHolders
from kaas.pool.on_ray.hosts import Resources, one_line
from kaas.pool.on_ray.readiness import Readiness
from kaas.scheduling.decisions import Dispatch, StartWorker
from kaas.wire import specs
from kaas.wire.outputs import Packed, StoredOutput, unpacked
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import WorkerPost
from kaas.worker.etask_actor import WATCH, ETaskActor
from kaas.worker.held.terms import HolderAddress

CLOSE_LIMIT_S = 5.0
"""Time limit of an instance's own `close`."""


class ETaskWorkers:
    """The `WorkerTransport` of eTasks' workers, without commands about caches."""

    def __init__(self, config: Config, etasks: ETasks, own: Any, readiness: Readiness) -> None:
        """Prepare to start workers. own: the handle of the pool's actor."""
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._devices = config.devices
        self._share = 1 / config.etask_workers  # of its device, for each worker
        self._etasks = etasks
        self._own = own
        self._holders = RayHolders(config)
        self._places: dict[int, tuple[int, str]] = {}  # device and node, by worker
        self._readiness = readiness
        self._resources = Resources()
        self._actors: dict[int, Any] = {}
        self._start_s: dict[int, float] = {}  # duration of a worker's start, until its first call is charged with it

    async def start(self, start: StartWorker) -> WorkerInfo:
        """Start a worker; raise the cause if it does not start."""
        clock = asyncio.get_running_loop().time
        etask, device = self._etasks[start.function], self._devices[start.device]
        options = {"num_cpus": 0, **self._resources.of(device, self._share)}
        decorate: Any = ray.remote  # Ray's types lack concurrency groups
        actor_class = decorate(concurrency_groups={WATCH: 1}, max_concurrency=1, **options)(ETaskActor)
        actor = self._actors[start.worker] = actor_class.remote(
            device, etask.code, etask.spec.path, WorkerPost(start, self._own), etask.spec.sms
        )
        began = clock()
        try:
            info: WorkerInfo = await actor.start.remote()
        except RayTaskError as error:
            raise error.cause from None  # the cause, without Ray's traceback
        self._start_s[start.worker] = clock() - began
        self._places[start.worker] = start.device, info.node
        return info

    async def holder(self, worker: int, visible: str, lost: str) -> HolderAddress:
        """Return the holder of constants on a worker's device.

        Args:
            visible: CUDA_VISIBLE_DEVICES of the worker. lost: as of `RayHolders.holder`.

        Raises:
            DeviceUnavailable: it does not start, or the worker has ended.
        """
        if worker not in self._places:
            raise DeviceUnavailable(f"worker {worker} has ended")
        return await self._holders.holder(HolderPlace(*self._places[worker], visible), lost)

    async def run(self, call: WorkerCall, dispatch: Dispatch) -> WorkerReply:
        """Run a call; raise WorkerLost if the worker ends first."""
        if dispatch.worker not in self._actors:
            raise WorkerLost("it ended before the call was sent")
        try:
            return await self._run(dispatch.worker, call.payload)
        except RayActorError as error:
            raise WorkerLost(one_line(error)) from error
        except RayError as error:
            return WorkerReply(error=KaasError(f"a worker failed in a way it should not: {error}"))

    async def _run(self, worker: int, payload: ETaskPayload) -> WorkerReply:
        method = self._actors[worker].call.options(num_returns=2)
        ref, last = method.remote(payload.message, payload.refs)
        try:
            answer = specs.decode_etask_reply(await last)
        except RayTaskError as error:  # Ray could not serialize the call's value
            failure = specs.ETaskFailure(str(error.cause), type(error.cause).__name__, str(error), b"")
            return WorkerReply(error=_failed(payload.label, failure))
        stages = {"run": answer.seconds}
        if worker in self._start_s:
            stages["start"] = self._start_s.pop(worker)
        record = specs.RunRecord(stages, {}, [], [], sum(stages.values()), load_s=answer.load_s)
        if answer.failure is not None:
            return WorkerReply(error=_failed(payload.label, answer.failure), record=record)
        if payload.direct:
            return WorkerReply(await _buffers(answer.value, ref), record=record)
        if answer.value:
            return WorkerReply(Packed(answer.value), record=record)
        incomplete = self._readiness.of([ref])
        if incomplete is not None:
            await incomplete
        return WorkerReply(StoredOutput(fetched, ref), record=record)

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return the reason."""
        try:
            await self._actors[worker].watch.remote()
        except RayError as error:
            return one_line(error)
        return "its watch returned"

    async def stop(self, worker: int) -> str:
        """Close the instance of a worker, within CLOSE_LIMIT_S; return the error in words, or ""."""
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                trouble: str = await self._actors[worker].close.remote()
        except TimeoutError:
            return f"its close() took more than {CLOSE_LIMIT_S:g} s"
        except RayError as error:
            return f"its process ended: {error}" if isinstance(error, RayActorError) else str(error)
        return trouble

    def kill(self, worker: int) -> None:
        """Kill a worker's process, if there is one."""
        self._start_s.pop(worker, None)
        self._places.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            ray.kill(actor)


async def _buffers(value: Sequence[bytes], ref: Any) -> list[memoryview]:
    """Return the buffers of a call's value. A worker of this pool has pickled it, as trusted as Ray's messages."""
    found = unpacked(value) if value else await ref
    return [memoryview(each) for each in found]


def _failed(label: str, failure: specs.ETaskFailure) -> KaasError:
    """Return the error for the caller. The cause stays encoded, since its code must not run in the pool."""
    error: KaasError
    if failure.by_input:
        error = InputFailed(f"an argument of {label!r} failed: {failure.message}", task=label, reason=failure.message)
    else:
        message = f"{label!r} raised {failure.message}"
        error = ETaskFailed(message, function=label, error_type=failure.error_type, traceback=failure.traceback)
    if failure.cause:
        error.seal_cause(failure.cause)
    return error
