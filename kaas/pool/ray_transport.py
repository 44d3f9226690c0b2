"""Executors as Ray actors, one call of an actor for each run."""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.pool import adoption, wire
from kaas.pool.etask_transport import ETaskWorkers
from kaas.pool.etasks import ETasks
from kaas.pool.events import StartWorker, WorkerKind
from kaas.pool.executor_actor import ADOPTION, GROUPS, ExecutorActor, Introduction
from kaas.pool.functions import RegisteredFunction
from kaas.pool.lives import Post
from kaas.pool.outputs import Inline, Stored
from kaas.pool.readiness import Readiness
from kaas.pool.resident import Lost
from kaas.pool.residents import Placed, Residents
from kaas.pool.results import fetched
from kaas.pool.status import WorkerInfo
from kaas.pool.transport import Call, Order, Reply, Survivor, WorkerLost

NAMESPACE = "kaas"
"""The Ray namespace in which pools and their executors have their names."""
SOFTWARE_RESOURCE = "kaas_software_gpu"
"""The Ray resource that a node with room for software GPUs declares; where none does, they run without reserving."""
RESCUE_LIMIT_S = 10.0
"""How long a worker that must go may write back the outputs that it keeps; others then run their tasks again."""
OPTIONS = ("slots", "cache_bytes", "host_cache_bytes", "whole_object_bytes", "run_limit_s")
"""Of a pool's configuration, what each executor is told."""


@dataclass(frozen=True, slots=True)
class Payload:
    """An invocation on its way. keep: the keys of the outputs that stay on the device, by their positions."""

    function: RegisteredFunction
    message: bytes
    refs: Sequence[Any]
    keep: Mapping[int, bytes] = field(default_factory=dict)

    def lost(self, key: bytes) -> Lost:
        """How to make an output anew that was kept."""
        position = next(position for position, kept in self.keep.items() if kept == key)
        message = wire.without_keep(self.message)
        return Lost(message, self.refs, self.function.introduction, position, len(self.function.outputs))


@dataclass(frozen=True, slots=True)
class Left:
    """Instead of an invocation: the run that a survivor has in this slot is waited for."""


@dataclass(frozen=True, slots=True)
class Orders:
    """An Upkeep on its way; functions: those that it is about."""

    functions: Sequence[RegisteredFunction]
    message: bytes
    refs: Sequence[Any]


class RayTransport:
    """The one place to change for another way to the executors."""

    def __init__(
        self,
        config: Config,
        readiness: Readiness,
        residents: Residents,
        etasks: ETasks,
        pool: str = "kaas",
        own: Any = None,
    ) -> None:
        """
        Args:
            pool: its name, which its executors' names begin with. own: the handle of its actor.
        """
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._prefix = f"{pool}/worker/"
        self._own = own
        self._devices = config.devices
        self._etask_share = 1 / config.etask_workers  # of its device, that a worker of eTasks reserves
        self._etask_workers = ETaskWorkers(etasks, readiness)
        self._options = {name: getattr(config, name) for name in OPTIONS}
        self._readiness = readiness
        self._residents = residents
        self._returns: set[asyncio.Task[None]] = set()
        self._on_device: dict[int, int] = {}
        self._actors: dict[int, Any] = {}
        self._met: dict[int, set[str]] = {}
        self._lives: dict[int, int] = {}
        self._reserve = SOFTWARE_RESOURCE in cluster_resources()

    async def start(self, start: StartWorker) -> WorkerInfo:
        worker, device = start.worker, start.device
        wanted = self._devices[device]
        if start.kind is WorkerKind.ETASK:
            options = {"num_cpus": 0, **self._resources(wanted, self._etask_share)}
            self._actors[worker] = self._etask_workers.actor(start, wanted, options)
            return await self._etask_workers.start(worker, self._actors[worker])
        options = {
            # not by the number alone: a later life of the pool may use it again
            "name": f"{self._prefix}{worker}-{secrets.token_hex(4)}",
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": 0,
            "concurrency_groups": {**GROUPS, ADOPTION: self._options["slots"] + 1},
            "max_concurrency": self._options["slots"],  # of what is in no group: runs
            **self._resources(wanted),
        }
        decorate: Any = ray.remote  # whose types do not know concurrency groups
        actor = decorate(**options)(ExecutorActor).remote(wanted, self._options, Post(start, self._own))
        self._actors[worker] = actor
        self._met[worker] = set()
        try:
            info: WorkerInfo = await actor.start.remote()
        except RayTaskError as error:
            raise error.cause from None  # what kept it from starting, without Ray's traceback
        self._came(worker, device)
        return info

    async def survivors(self) -> list[Survivor]:
        """The executors that an earlier process of the pool has left, ready for this one; others of its are ended."""
        adopted = await adoption.adopt(NAMESPACE, self._prefix)
        for device in sorted(adopted):
            one, actor = adopted[device]
            worker = one.start.worker
            self._actors[worker] = actor
            self._met[worker] = set(one.functions)
            self._lives[worker] = one.life
            self._came(worker, device)
        return [adoption.survivor(adopted[device][0], Left()) for device in sorted(adopted)]

    def _came(self, worker: int, device: int) -> None:
        self._on_device[worker] = device
        self._residents.worker_came(worker)
        returns = asyncio.get_running_loop().create_task(self._return(worker, self._actors[worker]))
        self._returns.add(returns)
        returns.add_done_callback(self._returns.discard)

    async def _return(self, worker: int, actor: Any) -> None:
        """Takes what a worker writes back, as long as it lives; what it had then is lost."""
        try:
            while True:
                array, last = actor.written.options(num_returns=2).remote(self._lives.get(worker, 0))
                key = await last
                incomplete = self._readiness.of([array])
                if incomplete is not None:
                    await incomplete
                self._residents.written(key, Stored(fetched, array))
        except RayError:
            self.kill(worker)  # whatever went wrong, an output may be lost with it
        finally:
            self._residents.worker_left(worker)

    def _resources(self, device: Device, share: float = 1) -> dict[str, Any]:
        if device.kind == "gpu":
            return {"num_gpus": share}
        return {"resources": {SOFTWARE_RESOURCE: share}} if self._reserve else {}

    async def ended(self, worker: int) -> str:
        try:
            life = (self._lives[worker],) if worker in self._lives else ()  # an eTask's worker has only one
            await self._actors[worker].watch.remote(*life)
        except RayError as error:
            return _one_line(error)
        return "its watch returned"

    async def stop(self, worker: int) -> str:
        if worker in self._etask_workers:
            return await self._etask_workers.close(worker)
        try:
            async with asyncio.timeout(RESCUE_LIMIT_S):
                await self._residents.rescue(worker, self._rescue)
        except (TimeoutError, WorkerLost, KaasError) as error:
            return f"outputs that it kept did not come back: {error or type(error).__name__}"
        return ""

    async def _rescue(self, worker: int, keys: Sequence[bytes]) -> None:
        """
        Raises:
            WorkerLost, KaasError
        """
        reply = await self.write_back(worker, keys)
        if reply.error is not None:
            raise reply.error

    def kill(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        self._etask_workers.forget(worker)
        self._met.pop(worker, None)
        self._on_device.pop(worker, None)
        self._residents.worker_left(worker)
        if actor is not None:
            ray.kill(actor)

    async def run(self, worker: int, slot: int, call: Call) -> Reply:
        actor, payload = self._actor(worker), call.payload
        if isinstance(payload, Left):
            return await _reply(actor.orphan.remote(self._lives[worker], slot))
        try:
            if call.kind is WorkerKind.ETASK:
                return await self._etask_workers.run(worker, payload)
            run = self._run_inline if payload.function.inline else self._run_stored
            return await run(worker, slot, actor, payload)
        except RayActorError as error:
            raise WorkerLost(_one_line(error)) from error
        except RayError as error:
            return Reply(error=KaasError(f"an executor failed in a way it should not: {error}"))

    async def _run_inline(self, worker: int, slot: int, actor: Any, payload: Payload) -> Reply:
        function = payload.function
        introduction = self._introduction(worker, function)
        if introduction is not None or slot or payload.keep:
            ref = actor.run.remote(payload.message, payload.refs, introduction, slot, *_keys(payload))
        else:  # the fewer arguments the faster
            ref = actor.run.remote(payload.message, payload.refs) if payload.refs else actor.run.remote(payload.message)
        answer = wire.decode_answer(await ref)
        if answer.error is not None:
            return _failed(answer)
        self._introduced(worker, function, introduction)
        values = (Inline(data, *layout) for data, layout in zip(answer.outputs, function.outputs, strict=True))
        return Reply(tuple(values), record=answer.record, lost=answer.lost)

    async def _run_stored(self, worker: int, slot: int, actor: Any, payload: Payload) -> Reply:
        function, count = payload.function, len(payload.function.outputs)
        device = self._on_device[worker]
        introduction = self._introduction(worker, function)
        method = actor.run_stored.options(num_returns=count + 1)
        *stored, last = method.remote(payload.message, payload.refs, introduction, slot, count, *_keys(payload))
        answer = wire.decode_answer(await last)
        if answer.error is not None:
            return _failed(answer)
        self._introduced(worker, function, introduction)
        for key in payload.keep.values():
            self._residents.placed(key, worker)
        incomplete = self._readiness.of([ref for position, ref in enumerate(stored) if position not in payload.keep])
        if incomplete is not None:
            await incomplete
        values = (
            Placed(payload.keep[position], device) if position in payload.keep else Stored(fetched, ref)
            for position, ref in enumerate(stored)
        )
        return Reply(tuple(values), record=answer.record, lost=answer.lost)

    async def upkeep(self, worker: int, order: Order) -> Reply:
        orders: Orders = order.payload
        actor = self._actor(worker)
        introductions = [self._introduction(worker, function) for function in orders.functions]
        new = [introduction for introduction in introductions if introduction is not None]
        reply = await _reply(actor.upkeep.remote(orders.message, orders.refs, new))
        if reply.error is None:
            for function, introduction in zip(orders.functions, introductions, strict=True):
                self._introduced(worker, function, introduction)
        return reply

    async def prefetch(self, worker: int, named: Mapping[bytes, Call]) -> Reply:
        actor = self._actor(worker)
        positions: dict[Any, int] = {}
        loads = []
        for call, keys in _by_call(named):
            payload: Payload = call.payload
            places = payload.function.places(wire.decode_invocation(payload.message), payload.refs)
            for key in keys:
                ref, entry = places[key]
                loads.append(wire.KeyedObject(key, positions.setdefault(ref, len(positions)), entry))
        return await _reply(actor.follow.remote(wire.encode(wire.Decided(loads, [])), list(positions)))

    async def evict(self, worker: int, keys: Sequence[bytes]) -> Reply:
        return await _reply(self._actor(worker).follow.remote(wire.encode(wire.Decided([], list(keys))), []))

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> Reply:
        reply = await _reply(self._actor(worker).write_back.remote(keys))
        if reply.error is None:
            await self._residents.come(keys)
        return reply

    async def discard(self, worker: int, keys: Sequence[bytes]) -> Reply:
        return await _reply(self._actor(worker).discard.remote(keys))

    def _actor(self, worker: int) -> Any:
        if worker not in self._actors:
            raise WorkerLost("it ended before it was reached")
        return self._actors[worker]

    def _introduction(self, worker: int, function: RegisteredFunction) -> Introduction | None:
        """What goes with every call until one has succeeded: one that is sent later may be the first to run."""
        if function.key in self._met[worker]:
            return None
        return function.introduction

    def _introduced(self, worker: int, function: RegisteredFunction | None, introduction: Introduction | None) -> None:
        if introduction is not None and function is not None and worker in self._met:
            self._met[worker].add(function.key)


def _keys(payload: Payload) -> tuple[list[bytes], ...]:
    """The argument that says what is kept; none if nothing is."""
    return (list(payload.keep.values()),) if payload.keep else ()


def cluster_resources() -> dict[str, float]:
    """What all nodes of the cluster declare together, by name."""
    declared: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return declared


async def _reply(ref: Any) -> Reply:
    """What an executor made of something that has no outputs.

    Raises:
        WorkerLost
    """
    try:
        answer = wire.decode_answer(await ref)
    except RayActorError as error:
        raise WorkerLost(_one_line(error)) from error
    except RayError as error:
        return Reply(error=KaasError(f"an executor failed in a way it should not: {error}"))
    return Reply(record=answer.record, lost=answer.lost) if answer.error is None else _failed(answer)


def _by_call(named: Mapping[bytes, Call]) -> Iterator[tuple[Call, list[bytes]]]:
    calls: dict[int, tuple[Call, list[bytes]]] = {}
    for key, call in named.items():
        calls.setdefault(id(call), (call, []))[1].append(key)
    yield from calls.values()


def _failed(answer: wire.Answer) -> Reply:
    assert answer.error is not None
    try:
        error: KaasError = pickle.loads(answer.error)
    except Exception as foreign:  # noqa: BLE001 - a provider of code may raise a class of its own, which is not here
        error = KaasError(f"an executor failed with an error that cannot be read here: {foreign}")
    return Reply(error=error, record=answer.record, lost=answer.lost)


def _one_line(error: Exception) -> str:
    """What Ray says of a death, in its first words: its full text has one line for each detail."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400]
