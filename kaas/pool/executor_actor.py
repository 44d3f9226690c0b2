"""The Ray actor around one executor: it opens a device in its own process and turns messages into runs."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from kaas.config import Device
from kaas.errors import InputFailed, KaasError
from kaas.graph import KTask
from kaas.pool import wire
from kaas.pool.lives import Adoption, Lives, Orphan, Post
from kaas.pool.packing import unpack, unpack_keyed, unpack_objects
from kaas.pool.resident import InputLost, Resident
from kaas.pool.status import WorkerInfo

if TYPE_CHECKING:
    from kaas.executor.executor import Executor, Result, RunStats

WATCH = "watch"
"""The concurrency group of `watch`, so that it never stands in the way of a run."""
UPKEEP = "upkeep"
"""That of `upkeep`, which so waits for no run, nor a run for it; one thread, so that orders keep their order."""
WRITE_BACK, WRITTEN = "write_back", "written"
"""Those of the methods of these names. Neither waits for a run, nor for a load, which may wait for another executor."""
ADOPTION = "adoption"
"""That of `adopt` and `orphan`: a thread for each run that is waited for, and one more."""
GROUPS = {WATCH: 1, UPKEEP: 1, WRITE_BACK: 1, WRITTEN: 1, ADOPTION: 2}
"""All of them, as Ray is told, with their threads; these are for one slot."""

LINGER_S = 2.0
"""How long a process whose device is lost stays, so that all its answers arrive: everybody in it is told at once."""
LOST_STATUS = 3
"""The exit status of a process that ended by itself, since its device was lost."""

Introduction = tuple[bytes, list[Any]]
"""A function that the executor has not met: its spec, and the reference to its kTask's bytes, in a list so that Ray
hands over the reference and not the bytes."""


T = TypeVar("T")
Get = Callable[[Any], Any]


class Keep(NamedTuple):
    """Keys of the outputs that stay on the device. copy: they come back too."""

    keys: Sequence[bytes] = ()
    copy: bool = False


class ExecutorActor:
    """One device. Ray runs `start`, and then `run` for as many requests at a time as there are slots."""

    def __init__(self, device: Device, options: dict[str, Any], post: Post | None = None) -> None:
        """
        Args:
            options: those of `kaas.executor.Executor`. post: None without a pool.
        """
        self._device = device
        self._options = options
        self._executor: Executor | None = None
        self._functions: dict[str, tuple[wire.FunctionSpec, KTask]] = {}
        self._leaving: threading.Timer | None = None
        self._post = post
        self._info: WorkerInfo | None = None
        self._lives = Lives()

    def start(self) -> WorkerInfo:
        """Open the device.

        Raises:
            DeviceUnavailable
        """
        from kaas.executor import software
        from kaas.executor.device import open_device
        from kaas.executor.executor import Executor

        if self._post is not None:
            self._pool_ends = self._post.pool.next_life.remote().future()
            self._pool_ends.add_done_callback(_leave)
        if self._device.kind == "software":
            software.load(self._device)
        device = open_device(self._device.kind, memory_bytes=self._device.memory_bytes)
        self._executor = Executor(device, **self._options, on_write_back=self._lives.write)
        info = device.info()
        node = ray.get_runtime_context().get_node_id()
        slots = self._options["slots"]
        self._info = WorkerInfo(os.getpid(), node, info.name, info.memory_bytes, info.compute_capability, slots)
        return self._info

    @ray.method(concurrency_group=WATCH)
    def watch(self, life: int = 0) -> None:
        """Fails when the process ends, which tells the pool at once; returns only to a pool that has ended itself."""
        self._lives.wait(life)

    @ray.method(concurrency_group=ADOPTION)
    def adopt(self) -> Adoption | None:
        """A new process of the pool takes over from the one that ended. None: there is no device to take over."""
        if self._post is None or self._executor is None or self._info is None or self._executor.lost is not None:
            return None
        life, messages = self._lives.begin()
        running = {slot: self._orphan(wire.decode_invocation(message)) for slot, message in messages.items()}
        functions = frozenset(self._functions)
        cached = tuple(self._executor.cached())
        return Adoption(self._post.start, self._info, life, running, functions, cached)

    def _orphan(self, invocation: wire.Invocation) -> Orphan:
        met = self._functions.get(invocation.function)
        return Orphan(invocation.client, invocation.function, invocation.function if met is None else met[1].label)

    @ray.method(concurrency_group=ADOPTION)
    def orphan(self, life: int, slot: int) -> bytes:
        """Waits for the end of what was running in a slot at the adoption; an encoded Answer without outputs."""
        result = self._lives.orphan(life, slot)
        return self._success(wire.RunRecord({}, {}, [], [], 0.0) if result is None else _record(result))

    def run(
        self,
        message: bytes,
        refs: Sequence[Any] = (),
        introduction: Introduction | None = None,
        slot: int = 0,
        keep: Sequence[bytes] = (),
    ) -> bytes:
        """An invocation whose outputs come back inside the encoded Answer. keep: keys of those that stay here too."""
        try:
            result = self._run(message, refs, introduction, slot, Keep(keep, copy=True))
        except KaasError as error:
            return self._failure(error)
        outputs = [array.tobytes() for array in result.outputs.values()]
        return self._success(_record(result), outputs)

    def run_stored(
        self,
        message: bytes,
        refs: Sequence[Any],
        introduction: Introduction | None,
        slot: int,
        outputs: int,
        keep: Sequence[bytes] = (),
    ) -> list[Any]:
        """An invocation whose outputs go to Ray's store, each a return value of its own, None for those that stay here.
        The Answer comes last: when the caller has it, the values before it are complete."""
        try:
            result = self._run(message, refs, introduction, slot, Keep(keep))
        except KaasError as error:
            return [*(None for _ in range(outputs)), self._failure(error)]
        _, task = self._functions[wire.decode_invocation(message).function]
        values = [result.outputs.get(buffer.name) for buffer in task.outputs]
        return [*values, self._success(_record(result))]

    @ray.method(concurrency_group=WRITE_BACK)
    def write_back(self, keys: Sequence[bytes]) -> bytes:
        """Have kept outputs given out by `written`; an encoded Answer without outputs."""
        assert self._executor is not None, "start comes first"
        executor = self._executor

        def write_back() -> wire.RunRecord:
            executor.write_back(keys)
            return wire.RunRecord({}, {}, [], [], 0.0)

        return self._answer(write_back)

    @ray.method(concurrency_group=WRITE_BACK)
    def discard(self, keys: Sequence[bytes]) -> bytes:
        """Forget kept outputs; an encoded Answer without outputs."""
        assert self._executor is not None, "start comes first"
        executor = self._executor
        return self._answer(lambda: wire.RunRecord({}, {}, [], list(executor.discard(keys)), 0.0))

    @ray.method(concurrency_group=WRITTEN)
    def written(self, life: int = 0) -> tuple[Any, bytes]:
        """Waits for the next output that is written back: the array, and its key."""
        key, array = self._lives.written(life) or (b"", None)  # nothing is what a pool gets that has ended itself
        return array, key

    @ray.method(concurrency_group=UPKEEP)
    def upkeep(self, message: bytes, refs: Sequence[Any], introductions: Sequence[Introduction] = ()) -> bytes:
        """What a program wants of the cache; an encoded Answer without outputs."""
        return self._answer(lambda: self._upkeep(message, refs, introductions))

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
            executor = self._executor
            return _of_cache(self._with_inputs(lambda get: executor.load(unpack_keyed(decided.loads, refs, get))))
        return wire.RunRecord({}, {}, [], list(self._executor.flush(decided.drops)), 0.0)

    def _upkeep(self, message: bytes, refs: Sequence[Any], introductions: Sequence[Introduction]) -> wire.RunRecord:
        for introduction in introductions:
            self._meet(introduction)
        assert self._executor is not None, "start comes first"
        upkeep = wire.decode_upkeep(message)
        met = [self._functions[key] for key in upkeep.functions]
        specs = [spec for spec, _ in met]
        named = unpack_objects(upkeep, specs, refs, _get)
        everything = not (upkeep.objects or upkeep.functions)
        keys = None if everything else [source.key for source in named if source.key is not None]
        match upkeep.action:
            case "flush":
                return wire.RunRecord({}, {}, [], list(self._executor.flush(keys)), 0.0)
            case "unpin":
                self._executor.unpin(keys)
                return wire.RunRecord({}, {}, [], [], 0.0)
            case _:
                for _, task in met:
                    self._executor.prepare(task)
                executor, pin = self._executor, upkeep.action == "pin"
                return _of_cache(
                    self._with_inputs(lambda get: executor.load(unpack_objects(upkeep, specs, refs, get), pin=pin))
                )

    def _run(
        self, message: bytes, refs: Sequence[Any], introduction: Introduction | None, slot: int, keep: Keep
    ) -> Result:
        with self._lives.running(slot, message) as run:
            run.result = self._with_inputs(
                lambda get: self._attempt(message, refs, introduction, slot, keep, get), slot
            )
        result: Result = run.result
        return result

    def _attempt(
        self,
        message: bytes,
        refs: Sequence[Any],
        introduction: Introduction | None,
        slot: int | None,
        keep: Keep,
        get: Get,
    ) -> Result:
        from kaas.executor.executor import Request

        if introduction is not None:
            self._meet(introduction)
        assert self._executor is not None, "start comes first"
        invocation = wire.decode_invocation(message)
        spec, task = self._functions[invocation.function]
        sources = unpack(invocation, spec, refs, get)
        names = (task.outputs[position].name for position in invocation.keep)
        kept = dict(zip(names, keep.keys, strict=True)) if keep.keys else {}
        request = Request(
            task,
            sources,
            invocation.scalars,
            invocation.client,
            invocation.profile,
            keep=kept,
            copy_kept=keep.copy,
        )
        return self._executor.run(request, slot)

    def _with_inputs(self, attempt: Callable[[Get], T], slot: int | None = None) -> T:
        """What needs inputs, of which some may have ended with the executor that kept them: these are computed anew
        here, each before what reads it, in the slot that would otherwise wait for them."""
        made: dict[bytes, Any] = {}
        get = partial(_input, made)
        missing: list[InputLost] = []
        while True:
            try:
                if not missing:
                    return attempt(get)
                lost = missing[-1].lost
                result = self._attempt(lost.message, lost.refs, lost.function, slot, Keep(), get)
            except InputFailed as failed:
                if not isinstance(failed.__cause__, InputLost):
                    raise
                missing.append(failed.__cause__)
            else:
                made[missing.pop().key] = list(result.outputs.values())[lost.output]

    def _meet(self, introduction: Introduction) -> None:
        spec = wire.decode_function(introduction[0])
        if spec.key not in self._functions:
            self._functions[spec.key] = spec, KTask.from_msgpack(_get(introduction[1][0]))


def _leave(watched: Future[Any]) -> None:
    """The pool has ended for good, and with it whoever could use this process. One that stops ends it, as a rule."""
    if watched.exception() is None:
        ending = threading.Timer(LINGER_S, os._exit, (0,))
        ending.daemon = True
        ending.start()
    elif isinstance(watched.exception(), RayError):
        os._exit(0)


def _input(made: Mapping[bytes, Any], value: Any) -> Any:
    """As `_get`; for an output that stays on some device, its array. made: those computed anew.

    Raises:
        InputLost
    """
    value = _get(value)
    if not isinstance(value, Resident):
        return value
    return made[value.key] if value.key in made else value.here()


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
