"""An executor as a Ray actor: Ray starts and ends it, and brings the objects that its cache lacks."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from kaas.config import Device
from kaas.wire.messages import Address
from kaas.wire.resident import Resident
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption, Orphan, WorkerPost
from kaas.worker.executor_worker import LINGER_S, ExecutorWorker
from kaas.worker.invocation_runner import Introduction

GROUPS = {"watch": 1, "provide": 1, "collect": 2, "adoption": 2}
"""Concurrency groups and their numbers of threads: no method waits for a method of another group."""


class ExecutorActor:
    """One device. Ray calls `start`; all else comes over a connection to the pool."""

    def __init__(self, device: Device, options: dict[str, Any], post: WorkerPost) -> None:
        """
        Args:
            options: as `executor_options` returns them.
        """
        self._post = post
        self._info: WorkerInfo | None = None
        node = ray.get_runtime_context().get_node_id()
        name = str(post.start.worker)
        self._worker = ExecutorWorker(device, options, name, node, get=_input, introduce=self._introduce)

    def start(self, address: Address) -> WorkerInfo:
        """Open the device, and connect to the pool.

        Raises:
            DeviceUnavailable; the errors of `connect`.
        """
        self._pool_ends = self._post.pool.next_epoch.remote().future()
        self._pool_ends.add_done_callback(_leave)
        self._info = self._worker.start(address)
        return self._info

    @ray.method(concurrency_group="watch")
    def watch(self, epoch: str) -> None:
        """Fail when the process ends, which tells the pool at once; return only to a pool that has ended itself."""
        self._worker.wait(epoch)

    @ray.method(concurrency_group="adoption")
    def adopt(self, address: Address) -> Adoption | None:
        """Join a new process of the pool, which takes over from the one that ended. Return None without a device."""
        if self._info is None or self._worker.work.executor.lost is not None:
            return None
        runs = self._worker.begin(address)
        work = self._worker.work
        invocations = {slot: run.invocation for slot, run in runs.items()}
        running = {
            slot: Orphan(one.client, one.function, work.label(one.function)) for slot, one in invocations.items()
        }
        return Adoption(self._post.start, self._info, running, work.functions, tuple(work.executor.cached()))

    @ray.method(concurrency_group="provide")
    def provide(self, epoch: str, number: int, refs: Sequence[Any]) -> None:
        """Take the references attached to a request, whose objects the cache lacks.

        `epoch` is that of the pool that sends them: they may come after the next epoch began.
        """
        self._worker.provide(epoch, number, refs)

    @ray.method(concurrency_group="collect")
    def collect(self, epoch: str, deferred: int) -> list[Any]:
        """Return outputs, each a return value of its own, so that the pool owns them.

        None comes last: when the caller has it, the values before it are complete.
        """
        return [*self._worker.collect(epoch, deferred), None]

    def _introduce(self, function: str) -> Introduction:
        introduction: Introduction = ray.get(self._post.pool.function.remote(function))
        return introduction


def _leave(watched: Future[Any]) -> None:
    """End the process: the pool has ended for good."""
    if watched.exception() is None:
        ending = threading.Timer(LINGER_S, os._exit, (0,))
        ending.daemon = True
        ending.start()
    elif isinstance(watched.exception(), RayError):
        os._exit(0)


def _input(value: Any, made: Mapping[bytes, Any]) -> Any:
    """Return the object of a reference, or the value itself; of an output that stays on a device, its array.

    `made` has the outputs that were computed anew.

    Raises:
        InputLost; the error of the reference's task, without Ray's wrapping.
    """
    if isinstance(value, ray.ObjectRef):
        try:
            value = ray.get(value)
        except RayTaskError as error:
            raise error.cause from None
    if not isinstance(value, Resident):
        return value
    return made[value.key] if value.key in made else value.here()
