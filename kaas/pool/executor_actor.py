"""The Ray actor around one executor: it opens a device in its own process and turns messages into runs."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayTaskError

from kaas.config import Device
from kaas.errors import KaasError
from kaas.graph import KTask
from kaas.pool import wire
from kaas.pool.packing import unpack, unpack_keyed, unpack_objects
from kaas.pool.status import WorkerInfo

if TYPE_CHECKING:
    from kaas.executor.executor import Executor, Result, RunStats

WATCH = "watch"
"""The concurrency group of `watch`, so that it never stands in the way of a run."""
UPKEEP = "upkeep"
"""That of `upkeep`, which so waits for no run, nor a run for it; one thread, so that orders keep their order."""

LINGER_S = 2.0
"""How long a process whose device is lost stays, so that all its answers arrive: everybody in it is told at once."""
LOST_STATUS = 3
"""The exit status of a process that ended by itself, since its device was lost."""

Introduction = tuple[bytes, list[Any]]
"""A function that the executor has not met: its spec, and the reference to its kTask's bytes, in a list so that Ray
hands over the reference and not the bytes."""


class ExecutorActor:
    """One device. Ray runs `start`, and then `run` for as many requests at a time as there are slots."""

    def __init__(self, device: Device, options: dict[str, Any]) -> None:
        """
        Args:
            options: those of `kaas.executor.Executor`.
        """
        self._device = device
        self._options = options
        self._executor: Executor | None = None
        self._functions: dict[str, tuple[wire.FunctionSpec, KTask]] = {}
        self._leaving: threading.Timer | None = None

    def start(self) -> WorkerInfo:
        """Open the device.

        Raises:
            DeviceUnavailable
        """
        from kaas.executor import software
        from kaas.executor.device import open_device
        from kaas.executor.executor import Executor

        if self._device.kind == "software":
            software.load(self._device)
        device = open_device(self._device.kind, memory_bytes=self._device.memory_bytes)
        self._executor = Executor(device, **self._options)
        info = device.info()
        node = ray.get_runtime_context().get_node_id()
        slots = self._options["slots"]
        return WorkerInfo(os.getpid(), node, info.name, info.memory_bytes, info.compute_capability, slots)

    @ray.method(concurrency_group=WATCH)
    def watch(self) -> None:
        """Never returns: the call fails when the process ends, which tells the pool at once."""
        threading.Event().wait()

    def run(
        self, message: bytes, refs: Sequence[Any] = (), introduction: Introduction | None = None, slot: int = 0
    ) -> bytes:
        """An invocation whose outputs come back inside the encoded Answer."""
        try:
            result = self._run(message, refs, introduction, slot)
        except KaasError as error:
            return self._failure(error)
        outputs = [array.tobytes() for array in result.outputs.values()]
        return self._success(_record(result), outputs)

    def run_stored(
        self, message: bytes, refs: Sequence[Any], introduction: Introduction | None, slot: int, outputs: int
    ) -> list[Any]:
        """An invocation whose outputs stay in Ray's store, each a return value of its own. The Answer comes last: when
        the caller has it, the values before it are complete."""
        try:
            result = self._run(message, refs, introduction, slot)
        except KaasError as error:
            return [*(None for _ in range(outputs)), self._failure(error)]
        return [*result.outputs.values(), self._success(_record(result))]

    @ray.method(concurrency_group=UPKEEP)
    def upkeep(self, message: bytes, refs: Sequence[Any], introduction: Introduction | None = None) -> bytes:
        """What a program wants of the cache; an encoded Answer without outputs."""
        return self._answer(lambda: self._upkeep(message, refs, introduction))

    @ray.method(concurrency_group=UPKEEP)
    def follow(self, message: bytes, refs: Sequence[Any]) -> bytes:
        """What the policy decided about the cache; an encoded Answer without outputs."""
        return self._answer(lambda: self._follow(wire.decode_decided(message), refs))

    def _answer(self, work: Callable[[], wire.RunRecord]) -> bytes:
        try:
            record = work()
        except KaasError as error:
            return self._failure(error)
        return self._success(record)

    def _success(self, record: wire.RunRecord, outputs: Sequence[bytes] = ()) -> bytes:
        return wire.encode(wire.Answer(outputs, record, lost=self._lost()))

    def _failure(self, error: KaasError) -> bytes:
        return wire.encode(wire.Answer([], error=pickle.dumps(error), lost=self._lost()))

    def _lost(self) -> str:
        """Why the device is lost, if it is; then this process ends, by itself if the pool does not see to it."""
        lost = None if self._executor is None else self._executor.lost
        if lost is None:
            return ""
        if self._leaving is None:
            self._leaving = threading.Timer(LINGER_S, os._exit, (LOST_STATUS,))
            self._leaving.daemon = True
            self._leaving.start()
        return lost.message

    def _follow(self, decided: wire.Decided, refs: Sequence[Any]) -> wire.RunRecord:
        assert self._executor is not None, "start comes first"
        if decided.loads:
            return _of_cache(self._executor.load(unpack_keyed(decided.loads, refs, _get)))
        return wire.RunRecord({}, {}, [], list(self._executor.flush(decided.drops)), 0.0)

    def _upkeep(self, message: bytes, refs: Sequence[Any], introduction: Introduction | None) -> wire.RunRecord:
        if introduction is not None:
            self._meet(introduction)
        assert self._executor is not None, "start comes first"
        upkeep = wire.decode_upkeep(message)
        spec, task = self._functions[upkeep.function] if upkeep.function else (None, None)
        sources = unpack_objects(upkeep, spec, refs, _get)
        everything = not (upkeep.objects or upkeep.function)
        keys = None if everything else [source.key for source in sources if source.key is not None]
        match upkeep.action:
            case "flush":
                return wire.RunRecord({}, {}, [], list(self._executor.flush(keys)), 0.0)
            case "unpin":
                self._executor.unpin(keys)
                return wire.RunRecord({}, {}, [], [], 0.0)
            case _:
                if task is not None:
                    self._executor.prepare(task)
                return _of_cache(self._executor.load(sources, pin=upkeep.action == "pin"))

    def _run(self, message: bytes, refs: Sequence[Any], introduction: Introduction | None, slot: int) -> Result:
        from kaas.executor.executor import Request

        if introduction is not None:
            self._meet(introduction)
        assert self._executor is not None, "start comes first"
        invocation = wire.decode_invocation(message)
        spec, task = self._functions[invocation.function]
        sources = unpack(invocation, spec, refs, _get)
        request = Request(task, sources, invocation.scalars, invocation.client, invocation.profile)
        return self._executor.run(request, slot)

    def _meet(self, introduction: Introduction) -> None:
        spec = wire.decode_function(introduction[0])
        if spec.key not in self._functions:
            self._functions[spec.key] = spec, KTask.from_msgpack(_get(introduction[1][0]))


def _get(value: Any) -> Any:
    """The object of a reference, or the value itself; raises what its task raised, without Ray's wrapping."""
    if not isinstance(value, ray.ObjectRef):
        return value
    try:
        return ray.get(value)
    except RayTaskError as error:
        raise error.cause from None


def _of_cache(stats: RunStats) -> wire.RunRecord:
    return wire.RunRecord({}, stats.tiers, list(stats.loaded), list(stats.evicted), 0.0)


def _record(result: Result) -> wire.RunRecord:
    stats = result.stats
    moved = list(stats.loaded), list(stats.evicted)
    return wire.RunRecord(stats.stages, stats.tiers, *moved, stats.device_s, stats.kernels)
