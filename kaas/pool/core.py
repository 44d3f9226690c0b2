"""The pool's core: requests in, the policy's decisions carried out, every request answered; asyncio, but no Ray.

A request is *queued* until the policy dispatches it, then *running* until its worker replies or ends. Its caller may
leave before (cancelled, deadline, run limit); a running request then goes on alone, and its slot is free when it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

from kaas.config import Config
from kaas.errors import (
    DeadlineExceeded,
    DeviceLost,
    DeviceUnavailable,
    ExecutorDied,
    KaasError,
    PolicyError,
    PoolStopped,
)
from kaas.pool.accounts import Accounts, client_known
from kaas.pool.caches import Caches
from kaas.pool.checked import Checked
from kaas.pool.events import (
    Dispatch,
    Event,
    Evict,
    InputsReady,
    Outcome,
    PhysicalDevice,
    PolicyFactory,
    Prefetch,
    Reject,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    StartWorker,
    StopWorker,
    Tick,
    WakeAt,
    WorkerGone,
    WorkerReady,
)
from kaas.pool.policies import factory
from kaas.pool.records import Request, Worker, adopted, device_status
from kaas.pool.stats import Entry, Ledger, Stats
from kaas.pool.status import Status
from kaas.pool.transport import Call, Order, Reply, Survivor, Transport, WorkerLost
from kaas.pool.wire import RunRecord

GRACE_S = 2.0
"""How much later than the run limit the pool itself ends an executor, which may do so more gently, and say more. Also
how long it waits for the answer of a request that ran for too long, once others know of it."""
TIMED_OUT = 702
"""CUDA_ERROR_LAUNCH_TIMEOUT"""


class Pool:
    """Drives one policy. All methods belong to the event loop in which it was made."""

    def __init__(self, name: str, config: Config, transport: Transport) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._name = name
        self._config = config
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        # tasks of the pool do not run in the context of some caller: Ray cancels what a cancelled call has begun
        self._context = contextvars.Context()
        self._devices = tuple(
            PhysicalDevice(i, d.kind, d.memory_bytes, d.speed, config.etask_workers)
            for i, d in enumerate(config.devices)
        )
        self._policy = _make_policy(config.policy, self._devices)
        self._requests: dict[int, Request] = {}
        self._workers: dict[int, Worker] = {}
        self._ids = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ledger = Ledger(self._loop.time())
        self._caches = Caches(self, self._workers, len(self._devices), transport, self._ledger)
        self._accounts: Accounts | None = None
        self._broken: KaasError | None = None
        self._stopped = False

    def open(self, survivors: Sequence[Survivor] = (), accounts: Accounts | None = None) -> None:
        """Tell the policy what is there, and then let it start its workers."""
        self._accounts = accounts
        now = self._loop.time()
        for survivor in survivors:
            self._adopt(survivor, now)
        charged_s = accounts.charged_s() if accounts is not None else {}
        for client in dict.fromkeys((*self._config.clients, *charged_s)):
            self._tell(client_known(now, client, self._config.clients.get(client), charged_s.get(client, 0.0)))
        self._tell(Tick(now))

    async def submit(self, call: Call, inputs_ready: Awaitable[Any] | None = None) -> Any:
        """Run a request; inputs_ready completes when its inputs exist.

        Raises:
            KaasError: of whatever kind, when the request did not succeed.
            asyncio.CancelledError: the caller cancelled it.
        """
        self._check_open()
        request = self._admit(call, inputs_ready)
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request.answer.cancelled():
                self._note(request, "cancelled")
            self._abandon(request)
            raise

    async def upkeep(self, order: Order, device: int | None = None) -> None:
        """Carry out an order about caches on the worker of one device, or of each.

        Raises:
            What `Caches.carry_out` does.
        """
        self._check_open()
        await self._caches.carry_out(order, device)

    async def pin(self, target: bytes, order: Order, device: int | None = None) -> None:
        """Carry out an order, and once more on each worker that comes later; target names it.

        Raises:
            As `upkeep`, and then nothing will be done later.
        """
        self._check_open()
        self._caches.keep(target, order, device, await self._caches.carry_out(order, device))

    def unpin(self, target: bytes | None = None, device: int | None = None) -> None:
        """The end of what `pin` has begun, for one target or all, on one device or each."""
        self._caches.forget(target, device)

    async def write_back(self, worker: int, key: bytes) -> None:
        """Have a worker write back an output that stayed with it.

        Raises:
            KaasError: it cannot, or has ended.
        """
        if worker not in self._workers:
            raise DeviceUnavailable(f"worker {worker} has ended")
        await self._caches.write_back(self._workers[worker], key)

    def discard(self, worker: int, keys: Sequence[bytes]) -> None:
        """Have a worker forget outputs that stayed with it, since nobody will ask for them."""
        if worker in self._workers:
            self.background(self._caches.discard(self._workers[worker], keys))

    def tell_residency(self, worker: Worker, record: RunRecord | None) -> None:
        if record is not None and (record.loaded or record.evicted) and worker.id in self._workers:
            self._tell(Residency(self._loop.time(), worker.id, tuple(record.loaded), tuple(record.evicted)))

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._stopped:
            raise PoolStopped(f"pool {self._name!r} is shut down", pool=self._name)

    async def close(self) -> None:
        """Answer everybody, end all workers."""
        self._stopped = True
        for request in list(self._requests.values()):
            self._answer(request, PoolStopped(f"pool {self._name!r} was shut down", pool=self._name))
        for worker in self._workers.values():
            self._transport.kill(worker.id)
            worker.settled.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stats(self, reset: bool = False) -> Stats:
        now = self._loop.time()
        stats = self._ledger.read(now)
        if reset:
            self._ledger.reset(now)
        return stats

    def status(self, functions: tuple[str, ...] = ()) -> Status:
        on_device = {worker.device.index: worker for worker in self._workers.values()}
        queued = [request for request in self._requests.values() if request.worker is None]
        waiting = sum(request.inputs is not None and not request.inputs.done() for request in queued)
        return Status(
            pool=self._name,
            config=self._config,
            devices=tuple(
                device_status(device, on_device.get(device.index), self._caches.pins(device.index))
                for device in self._devices
            ),
            queued=len(queued) - waiting,
            waiting=waiting,
            running=sum(len(worker.running) for worker in self._workers.values()),
            functions=functions,
            broken=str(self._broken) if self._broken else None,
        )

    # --- the policy

    def _tell(self, event: Event) -> None:
        """The only way to the policy; what it decides is begun here and goes on in tasks, so events never nest."""
        if self._broken is not None or self._stopped:
            return
        try:
            decisions = self._policy.handle(event)
            for decision in decisions:
                match decision:
                    case Dispatch():
                        self._dispatch(decision)
                    case Reject():
                        error = DeviceUnavailable(f"pool {self._name!r}: {decision.reason}")
                        self._answer(self._leave(self._requests[decision.request]), error)
                    case StartWorker():
                        self._start(decision)
                    case StopWorker():
                        self._stop(decision.worker)
                    case WakeAt():
                        self._loop.call_at(decision.time_s, lambda: self._tell(Tick(self._loop.time())))
                    case Prefetch() | Evict():
                        self._caches.decided(decision, self._requests.values())
        except Exception as error:  # noqa: BLE001 - whoever made the mistake, nobody may be left waiting
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """The pool can no longer be trusted: tell every waiter and all who come later, rather than let them hang."""
        if not isinstance(error, KaasError):
            error = KaasError(f"pool {self._name!r} failed: {type(error).__name__}: {error}")
        self._broken = error
        for request in list(self._requests.values()):
            self._answer(request, error)

    def task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, context=self._context)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    # --- requests

    def _admit(self, call: Call, inputs_ready: Awaitable[Any] | None) -> Request:
        request = Request(next(self._ids), call, self._loop.time(), self._loop.create_future())
        self._requests[request.id] = request
        self._caches.arrived(request)
        if call.deadline_s is not None:
            request.timer = self._loop.call_later(call.deadline_s, self._expire, request)
        if inputs_ready is not None:
            request.inputs = asyncio.ensure_future(inputs_ready)
            request.inputs.add_done_callback(lambda waited: self._inputs_ready(request, waited))
        self._arrive(request)
        return request

    def _arrive(self, request: Request) -> None:
        call = request.call
        self._tell(
            RequestArrived(
                time_s=self._loop.time(),
                request=request.id,
                client=call.client,
                function=call.function or call.label,
                inputs=call.uses,
                ready=request.inputs is None or request.inputs.done(),
                deadline_s=None if call.deadline_s is None else request.arrived_s + call.deadline_s,
                attempt=request.attempt,
                kind=call.kind,
            )
        )

    def _inputs_ready(self, request: Request, waited: asyncio.Future[Any]) -> None:
        if waited.cancelled() or isinstance(waited.exception(), asyncio.CancelledError):
            return  # whoever stopped the wait has answered
        if (error := waited.exception()) is not None:
            self._break(error)
        elif not request.answer.done():
            self._tell(InputsReady(self._loop.time(), request.id))

    def _expire(self, request: Request) -> None:
        limit = request.call.deadline_s
        waited = self._loop.time() - request.arrived_s
        where = "queued" if request.worker is None else "running"
        message = f"{request.call.label!r} did not end in {limit} s: still {where} after {waited:.3f} s"
        self._answer(request, DeadlineExceeded(message, task=request.call.label, deadline_s=limit, waited_s=waited))
        self._abandon(request)

    def _answer(self, request: Request, result: Reply | KaasError) -> None:
        """Tell the caller, unless it has an answer or has gone."""
        request.release()
        if request.answer.done():
            return
        if isinstance(result, Reply):
            request.answer.set_result(result.value)
            self._note(request, "succeeded", result.record)
        else:
            request.answer.set_exception(result)
            self._note(request, type(result).__name__)

    def _abandon(self, request: Request) -> None:
        """Nobody waits for it any more: a queued request goes, a running one runs on."""
        request.release()
        if request.id not in self._requests:
            return
        if request.worker is None:
            self._leave(request)
        self._tell(RequestCancelled(self._loop.time(), request.id))

    def _leave(self, request: Request) -> Request:
        """It is neither queued nor running any more."""
        if self._requests.pop(request.id, None) is not None:
            self._caches.left(request)
        return request

    def _note(self, request: Request, outcome: str, record: RunRecord | None = None) -> None:
        call, device = request.call, request.worker.device.index if request.worker else None
        if record is None:
            self._ledger.write(Entry(call.label, call.client, device, outcome))
            return
        record.stages["queue"] = request.dispatched_s - request.arrived_s
        record.stages["request"] = self._loop.time() - request.arrived_s
        entry = Entry(call.label, call.client, device, outcome, record.stages, record.tiers, record.kernels)
        self._ledger.write(entry)

    # --- running

    def _dispatch(self, decision: Dispatch) -> None:
        request, worker = self._requests[decision.request], self._workers[decision.worker]
        request.worker = worker
        request.dispatched_s = self._loop.time()
        worker.running[request.id] = request
        self.background(self._run(request, worker, decision.slot))

    async def _run(self, request: Request, worker: Worker, slot: int) -> None:
        limit = self._loop.call_later(self._config.run_limit_s + GRACE_S, self._overrun, request, worker)
        try:
            reply = await self._transport.run(worker.id, slot, request.call)
        except WorkerLost as lost:
            self.gone(worker, str(lost))
            return
        finally:
            limit.cancel()
        if worker.id not in self._workers:
            return
        if isinstance(reply.error, DeviceLost):
            # Nothing on a device tells whose kernel it was: the fault is a request's own only if that ran alone.
            if len(worker.running) == 1:
                request.fault = reply.error
            worker.lost.add(request.id)
            self.lost(worker, reply.error)
        elif reply.lost:
            self._answer(request, reply.error or reply)  # it ran for too long, or ended just before another did
            cause = reply.error.__cause__ if reply.error is not None else None
            self.gone(worker, reply.lost, cause if isinstance(cause, DeviceLost) else None)
        else:
            self._done(request, worker, slot, reply)

    def _done(self, request: Request, worker: Worker, slot: int, reply: Reply) -> None:
        left = request.answer.done()
        del worker.running[request.id]
        self._answer(self._leave(request), reply.error or reply)
        record = reply.record
        ended = Outcome.FAILED if reply.error else Outcome.SUCCEEDED
        outcome = Outcome.ABANDONED if left else ended
        device_s = record.device_s if record else 0.0
        self.tell_residency(worker, record)
        self._tell(RequestDone(self._loop.time(), request.id, worker.id, slot, outcome, device_s))
        if self._accounts is not None:
            self._accounts.charge(request.call.client, device_s)
        if worker.stopping and not worker.running:
            self.gone(worker, "stopped")

    def lost(self, worker: Worker, error: DeviceLost) -> None:
        """A worker lost its device. If that is since a request ran for too long, it is not run again: the worker ends
        when that request has its own error."""
        if error.fields.get("code") == TIMED_OUT and worker.running.keys() - worker.lost:
            self._loop.call_later(GRACE_S, self.gone, worker, error.message, error)
        else:
            self.gone(worker, error.message, error)

    def _overrun(self, request: Request, worker: Worker) -> None:
        if request.worker is not worker:
            return  # its worker is gone, by the run limit of another slot perhaps, and it waits for its next run
        limit = self._config.run_limit_s
        message = f"{request.call.label!r} ran longer than the pool's run limit of {limit} s"
        waited = self._loop.time() - request.arrived_s
        self._answer(request, DeadlineExceeded(message, task=request.call.label, deadline_s=limit, waited_s=waited))
        self.gone(worker, message)

    # --- workers

    def _start(self, decision: StartWorker) -> None:
        worker = Worker(decision.worker, self._devices[decision.device])
        self._workers[worker.id] = worker
        self.background(self._live(worker, decision))

    async def _live(self, worker: Worker, decision: StartWorker) -> None:
        """A worker from its start to its end."""
        try:
            async with asyncio.timeout(self._config.start_limit_s):
                worker.info = await self._transport.start(decision)
        except Exception as error:  # noqa: BLE001 - whatever it is, it means that this worker is not there
            self.gone(worker, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return
        if worker.id not in self._workers:
            return
        now, info = self._loop.time(), worker.info
        self._tell(WorkerReady(now, worker.id, decision.kind, decision.device, info.slots, info.memory_bytes))
        worker.settled.set()
        self._caches.repeat(worker)
        await self._outlive(worker)

    async def _outlive(self, worker: Worker) -> None:
        self.gone(worker, await self._transport.ended(worker.id))

    def _adopt(self, survivor: Survivor, now: float) -> None:
        """What it still runs holds its slots until it ends, and nobody waits for it."""
        worker, events = adopted(survivor, self._devices[survivor.device], self._ids, now)
        self._workers[worker.id] = worker
        self._requests |= worker.running
        for event in events:
            self._tell(event)
        for slot, request in zip(survivor.running, worker.running.values(), strict=True):
            self.background(self._run(request, worker, slot))
        self.background(self._outlive(worker))

    def _stop(self, worker_id: int) -> None:
        worker = self._workers[worker_id]
        worker.stopping = True
        if not worker.running:
            self._loop.call_soon(self.gone, worker, "stopped")

    def gone(self, worker: Worker, reason: str, cause: DeviceLost | None = None) -> None:
        """A worker ended or must end, noticed here first or once more; its requests get another chance or an error."""
        worker.settled.set()
        if self._workers.pop(worker.id, None) is None or self._stopped:
            return
        self._transport.kill(worker.id)
        self._tell(WorkerGone(self._loop.time(), worker.id, reason))
        for request in worker.running.values():
            self._retry(request, worker, reason, cause)

    def _retry(self, request: Request, worker: Worker, reason: str, cause: DeviceLost | None) -> None:
        if not request.answer.done() and request.attempt <= request.call.retries:
            request.attempt += 1
            request.worker = None
            self._arrive(request)
            return
        self._leave(request)
        pid = worker.info.pid if worker.info else 0
        name = f"worker {worker.id} (pid {pid}) on device {worker.device.index}"
        others = len(worker.running) - 1
        beside = f" beside {others} other request{'s'[: others > 1]}" if others else ""
        message = f"{request.call.label!r}: {name} ended while running it{beside}, attempt {request.attempt}: {reason}"
        died = ExecutorDied(message, executor=name, attempts=request.attempt, reason=reason)
        died.__cause__ = cause
        self._answer(request, request.fault or died)


def _make_policy(chosen: str | PolicyFactory, devices: tuple[PhysicalDevice, ...]) -> Checked:
    name = getattr(chosen, "__name__", str(chosen))
    try:
        policy = factory(chosen)(devices)
    except Exception as error:
        raise PolicyError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}", policy=name) from error
    return Checked(policy, devices, name=name)
