"""Executors as detached Ray actors. Ray places them, stores their objects and reports their ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.pool.executors.transport import Compilation, WorkerLost
from kaas.pool.on_processes.compilers import Compilers
from kaas.pool.on_processes.objects import HeldObject
from kaas.pool.on_ray.cluster import NAMESPACE, SOFTWARE_RESOURCE, cluster_resources
from kaas.pool.on_ray.fetching import fetched
from kaas.pool.on_ray.readiness import Readiness
from kaas.scheduling.decisions import StartWorker
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.messages import Address, Block, Framed, ObjectParts
from kaas.wire.outputs import StoredOutput
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption, WorkerPost
from kaas.worker.executor_actor import GROUPS, ExecutorActor
from kaas.worker.executor_options import executor_options


class RayHosts:
    """Starts executors as actors whose names begin with the pool's name.

    Belongs to one event loop.
    """

    def __init__(self, name: str, config: Config, own: Any, readiness: Readiness) -> None:
        """Prepare to start executors. name: of the pool. own: its actor's handle. readiness: of this event loop."""
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._prefix = f"{name}/worker/"
        self._own = own
        self._devices = config.devices
        self._options = [executor_options(config, device, shares=False) for device in config.devices]
        self._readiness = readiness
        self._resources = Resources()
        self._inbox = Inbox()
        self._compilers = Compilers(config, None) if config.isolation != "none" else None
        self._actors: dict[int, Any] = {}
        self._epochs: dict[int, str] = {}

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        """Start an executor that connects to this address; raise the cause if it does not start."""
        device = self._devices[start.device]
        options = {
            # with a random part: a later epoch of the pool may use the number again
            "name": f"{self._prefix}{start.worker}-{secrets.token_hex(4)}",
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": 0,
            "concurrency_groups": GROUPS,
            **self._resources.of(device),
        }
        decorate: Any = ray.remote  # Ray's types lack concurrency groups
        actor = decorate(**options)(ExecutorActor).remote(
            device, self._options[start.device], WorkerPost(start, self._own)
        )
        self._actors[start.worker] = actor
        self._epochs[start.worker] = address.epoch
        try:
            info: WorkerInfo = await actor.start.remote(address)
        except RayTaskError as error:
            raise error.cause from None  # the cause, without Ray's traceback
        if self._compilers is not None and info.node == address.node:
            self._compilers.named(info.code)
        return info

    async def compile(self, task: bytes, client: str) -> Compilation:
        """Compile the code of a client's kTask on this node. Executors of another one compile it themselves."""
        return Compilation(0.0) if self._compilers is None else await self._compilers.compile(task, client)

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        """Adopt the executors of an earlier process of the pool, one for each device."""
        adopted = await adopt(NAMESPACE, self._prefix, address)
        for each, actor in adopted:
            self._actors[each.start.worker] = actor
            self._epochs[each.start.worker] = address.epoch
        return [each for each, _ in adopted]

    held_bytes = 0

    def prepare(self, worker: int, refs: Sequence[Any]) -> None:
        """Return None: nothing is to be waited for."""

    def provide(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Block]] | None:
        """Send references in a list, so that Ray passes on the references and not their objects.

        Objects that the pool holds for clients outside Ray go over the connection, unless the call has objects of both
        kinds.
        """
        held = [isinstance(ref, HeldObject) for ref in refs]
        if any(held) and all(mine or ref is None for mine, ref in zip(held, refs, strict=True)):
            return [() if ref is None else ref.blocks for ref in refs]
        sent = [parts_of(ref, self._inbox) if mine else ref for mine, ref in zip(held, refs, strict=True)]
        self._actors[worker].provide.remote(self._epochs[worker], number, sent)
        return None

    def owns(self, worker: int, pid: int) -> bool:  # noqa: ARG002 - Ray starts the processes, and knows their numbers
        """Return True."""
        return True

    def worker_of(self, pid: int) -> int:  # noqa: ARG002
        """Return -1."""
        return -1

    async def collect(self, worker: int, deferred: int, count: int) -> Sequence[StoredOutput]:
        """Return outputs as return values of an actor's method: the pool owns them, so they outlive the executor."""
        if worker not in self._actors:
            raise WorkerLost("it ended before its outputs were collected")
        collect = self._actors[worker].collect.options(num_returns=count + 1)
        *stored, last = collect.remote(self._epochs[worker], deferred)
        try:
            await last  # a small value: awaiting the others would copy them to this process
        except RayActorError as error:
            raise WorkerLost(one_line(error)) from error
        except RayError as error:
            raise KaasError(f"an executor failed in a way it should not: {error}") from error
        incomplete = self._readiness.of(stored)
        if incomplete is not None:
            await incomplete
        return [StoredOutput(fetched, ref) for ref in stored]

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return the reason."""
        try:
            await self._actors[worker].watch.remote(self._epochs[worker])
        except RayError as error:
            return one_line(error)
        return "its watch returned"

    def kill(self, worker: int) -> None:
        """Kill a worker's process, if there is one."""
        self._epochs.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            ray.kill(actor)


class Resources:
    """The resources that workers reserve in Ray."""

    def __init__(self) -> None:
        self._reserve = SOFTWARE_RESOURCE in cluster_resources()

    def of(self, device: Device, share: float = 1) -> dict[str, Any]:
        """Return Ray's options for a worker with this share of a device."""
        if device.kind == "gpu":
            return {"num_gpus": share}
        return {"resources": {SOFTWARE_RESOURCE: share}} if self._reserve else {}


def parts_of(held: HeldObject, inbox: Inbox) -> ObjectParts:
    """Return the values of an object that the pool holds, for a message of Ray."""
    views = [np.frombuffer(inbox.view(block), np.uint8) for block in held.blocks]
    return ObjectParts([Framed(position) for position in range(1, len(views) + 1)], views)


def one_line(error: Exception) -> str:
    """Return the first 400 characters of Ray's reason of a death, in one line: the full text has many details."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400]


ADOPTION_LIMIT_S = 5.0
"""Time limit of an executor's reply to a pool that starts again, before the executor is killed."""


async def adopt(namespace: str, prefix: str, address: Address) -> list[tuple[Adoption, Any]]:
    """Return the executors with this prefix that reply, with their actors, one for each device, in order of devices.

    The others are killed. `address` is the pool's address in its new epoch.
    """
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in actors if each["namespace"] == namespace and each["name"].startswith(prefix)]
    found = await asyncio.gather(*(_adopt(namespace, name, address) for name in names))
    adopted: dict[int, tuple[Adoption, Any]] = {}
    for adoption, actor in filter(None, found):
        if adoption.start.device in adopted:  # one of the two was ending
            ray.kill(actor)
        else:
            adopted[adoption.start.device] = adoption, actor
    return [adopted[device] for device in sorted(adopted)]


async def _adopt(namespace: str, name: str, address: Address) -> tuple[Adoption, Any] | None:
    try:
        actor = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None  # the actor has ended since
    adoption: Adoption | None = None
    with contextlib.suppress(TimeoutError, RayError):  # the actor has ended, or does not reply
        async with asyncio.timeout(ADOPTION_LIMIT_S):
            adoption = await actor.adopt.remote(address)
    if adoption is None:
        ray.kill(actor)
        return None
    return adoption, actor
