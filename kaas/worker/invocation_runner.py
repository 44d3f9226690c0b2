"""Runs what the pool's messages ask of an executor: invocations of functions, and cache commands."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from kaas.errors import InputFailed, KaasError
from kaas.executor.objects import HeldValue
from kaas.executor.run import RunRequest, RunResult
from kaas.ktask.graph import KTask
from kaas.wire import specs as wire
from kaas.wire.connections.shared_memory import part
from kaas.wire.messages import DeviceFiled, Filed, Framed, Named, ObjectParts
from kaas.wire.outputs import InputLost
from kaas.wire.packing import unpack, unpack_keyed, unpack_objects

if TYPE_CHECKING:
    from kaas.executor.executor import Executor
    from kaas.wire.messages import ExecutorAttachment

Introduction = tuple[bytes, bytes]
"""A function as the pool registers it: its encoded spec, and its kTask's bytes."""

T = TypeVar("T")

GetInput = Callable[[Any, Mapping[bytes, Any]], Any]
"""Returns the object of a reference, for which it waits, or a value itself. Its second argument has outputs that were
computed anew, by key; it raises InputLost for a lost output that is not among them."""


class InvocationRunner:
    """Runs invocations and cache commands on one executor. Any thread may call the methods."""

    def __init__(self, executor: Executor, introduce: Callable[[str], Introduction] | None = None) -> None:
        """
        Args:
            introduce: returns a function by its key that is not registered: its output, kept elsewhere, is lost.
        """
        self.executor = executor
        self._introduce = introduce
        self._owners: dict[str, int] = {}  # numbers of the owners of names that had several
        self._registered: dict[str, tuple[wire.FunctionSpec, bytes]] = {}
        self._functions: dict[str, tuple[wire.FunctionSpec, KTask]] = {}

    # --- functions

    @property
    def functions(self) -> frozenset[str]:
        """Keys of the registered functions."""
        return frozenset(self._registered)

    def register(self, spec: bytes, task: bytes) -> str:
        """Register a function, and return its key. An error of its kTask shows in the requests that name it."""
        known = wire.decode_function(spec)
        self._registered.setdefault(known.key, (known, bytes(task)))
        return known.key

    def forget(self, keys: Iterable[str]) -> None:
        """Forget functions that no messages will name, unless they are registered again."""
        for key in keys:
            self._registered.pop(key, None)
            self._functions.pop(key, None)

    def forget_client(self, client: str) -> None:
        """Take in that a client's name has a new owner, for whom nothing of the earlier one is there."""
        self._owners[client] = self._owners.get(client, 1) + 1

    def _owner(self, client: str) -> str:
        """Return the name under which the executor keeps clients apart."""
        number = self._owners.get(client)
        return client if number is None else f"{client} #{number}"

    def label(self, key: str) -> str:
        """Return a function's name for people."""
        return self._functions[key][1].label if key in self._functions else key

    def _function(self, key: str) -> tuple[wire.FunctionSpec, KTask]:
        known = self._functions.get(key)
        if known is not None:
            return known
        if key not in self._registered:
            if self._introduce is None:
                raise KaasError(f"function {key} is not registered with this executor")
            self.register(*self._introduce(key))
        spec, task = self._registered[key]
        known = self._functions[key] = spec, KTask.from_msgpack(task)
        return known

    # --- runs

    def run(
        self,
        invocation: wire.Invocation,
        attached: Sequence[ExecutorAttachment],
        objects: Attachments,
        slot: int,
        keep: Sequence[bytes] = (),
        copy: bool = False,
        victims: Sequence[bytes] = (),
        share: str = "",
        sms: int = 0,
    ) -> RunResult:
        """Run an invocation.

        `keep` has keys of the outputs that stay on the device. With `copy` they come back too. `victims`, `share` and
        `sms` are those of `RunRequest`.

        Raises:
            The errors of `Executor.run`, and KaasError for an unknown function.
        """
        try:
            return self._attempt(invocation, attached, objects, slot, keep, copy, victims, share, sms)
        except InputFailed as failed:
            lost = _lost(failed)
        again = partial(self._attempt, invocation, attached, objects, slot, keep, copy, victims, share, sms)
        return self._with_inputs(again, objects, slot, lost)

    def _attempt(
        self,
        invocation: wire.Invocation,
        refs: Sequence[object],
        objects: Attachments,
        slot: int | None,
        keep: Sequence[bytes] = (),
        copy: bool = False,
        victims: Sequence[bytes] = (),
        share: str = "",
        sms: int = 0,
    ) -> RunResult:
        began_s = None if invocation.function in self._functions else perf_counter()
        spec, task = self._function(invocation.function)
        registered_s = 0.0 if began_s is None else perf_counter() - began_s
        try:
            sources = unpack(invocation, spec, refs, objects)
        except InputFailed as error:
            error.task = task.label
            raise
        kept = {}
        if keep:
            kept = {task.outputs[at].name: key for at, key in zip(invocation.keep, keep, strict=True)}
        request = RunRequest(
            task,
            sources,
            invocation.scalars,
            self._owner(invocation.client),
            invocation.profile,
            keep=kept,
            copy_kept=copy,
            victims=victims,
            share=share,
            sms=sms,
        )
        result = self.executor.run(request, slot)
        if registered_s:  # decoding a kTask of many kernels takes long, too
            for stage in ("plan", "total"):
                result.stats.stages[stage] += registered_s
        return result

    def _with_inputs(self, attempt: Callable[[], T], objects: Attachments, slot: int | None, *known: InputLost) -> T:
        """Call `attempt`, which needs inputs; compute inputs anew that were lost with the executor that kept them.

        Each is computed before its reader, in the slot that would otherwise wait for it. `known` are inputs that are
        known to be lost.
        """
        missing = [*known]
        while True:
            try:
                if not missing:
                    return attempt()
                lost = missing[-1].lost
                result = self._attempt(wire.decode_invocation(lost.message), lost.refs, objects, slot)
            except InputFailed as failed:
                missing.append(_lost(failed))
            else:
                objects.made[missing.pop().key] = list(result.outputs.values())[lost.output]

    # --- commands about the cache

    def cache_command(
        self, command: wire.CacheCommandSpec, attached: Sequence[ExecutorAttachment], objects: Attachments
    ) -> wire.RunRecord:
        """Carry out a cache command of a program.

        Raises:
            The errors of `Executor.prepare`, `load` and `flush`.
        """
        executor = self.executor
        functions = [self._function(key) for key in command.functions]
        specs = [spec for spec, _ in functions]
        sources = unpack_objects(command, specs, attached, objects)
        everything = not (command.objects or command.functions)
        keys = None if everything else [source.key for source in sources if source.key is not None]
        match command.action:
            case "flush":
                return evicted(executor, executor.flush(keys))
            case "unpin":
                executor.unpin(keys)
                return evicted(executor)
            case _:
                for _, task in functions:
                    executor.prepare(task)
                pin = command.action == "pin"
                return self._with_inputs(
                    lambda: executor.load(sources, pin=pin, client=self._owner(command.client)), objects, None
                )

    def follow(
        self, decided: wire.CacheDecisionSpec, attached: Sequence[ExecutorAttachment], objects: Attachments
    ) -> wire.RunRecord:
        """Carry out a decision of the policy about the cache.

        Raises:
            The errors of `Executor.load`, `to_host` and `flush`.
        """
        executor, keys = self.executor, decided.leaving
        if decided.to_host:
            left = executor.to_host(keys)
            return evicted(executor, left, hosted=left)
        if not decided.loads:
            return evicted(executor, executor.flush(keys))
        sources = unpack_keyed(decided.loads, attached, objects)
        load = partial(executor.load, sources, victims=decided.victims, client=self._owner(decided.client))
        return self._with_inputs(load, objects, None)


def _lost(failed: InputFailed) -> InputLost:
    """Return the lost input that an error is about; raise the error again if it has another cause."""
    if not isinstance(failed.__cause__, InputLost):
        raise failed
    return failed.__cause__


def evicted(executor: Executor, keys: Sequence[bytes] = (), *, hosted: Sequence[bytes] = ()) -> wire.RunRecord:
    """Return the record of a command that runs no kernels and loads nothing: of the executor's use so far."""
    use = {"kernels": executor.kernel_seconds(), "clock": perf_counter()}
    if (busy := executor.device.utilisation()) is not None:
        use["busy"] = busy
    return wire.RunRecord(use, {}, (), keys, 0.0, (), executor.cached_bytes, hosted=hosted)


# --- the objects of a request


def same(value: Any, made: Mapping[bytes, Any]) -> Any:  # noqa: ARG001 - it is a GetInput
    """Return a value as it is: for requests whose objects travel themselves."""
    return value


class Attachments:
    """The objects of one request, as `kaas.wire.packing` gets them.

    Fields:
        made: outputs that were computed anew for the request, by key.
    """

    __slots__ = ("_constants", "_frames", "_get", "_items", "_objects", "_supply", "made")

    def __init__(
        self,
        items: Sequence[ExecutorAttachment],
        frames: Sequence[Any],
        supply: Callable[[], Sequence[Any]],
        get: GetInput,
        constants: Container[int | None] = (),
    ) -> None:
        """
        Args:
            frames: those behind the header. supply: returns the objects of the items, one for each. constants:
                positions of those that are tuples of constants.
        """
        self._items = items
        self._frames = frames
        self._supply = supply
        self._get = get
        self._constants = constants
        self._objects: Sequence[Any] | None = None
        self.made: dict[bytes, Any] = {}

    def __call__(self, item: Any) -> Any:
        """Return the object of an item, or of a reference that is none of the items.

        Raises:
            InputLost; the error of fetching the object.
        """
        if isinstance(item, Framed | Filed | DeviceFiled):
            return _read(item, self._frames)
        if not isinstance(item, Named):
            return self._get(item, self.made)
        if self._objects is None:
            self._objects = self._supply()
        position = self._items.index(item)
        found = self._objects[position]
        if not isinstance(found, ObjectParts):
            return self._get(found, self.made)
        values = [_read(each, found.frames) for each in found.items]
        return values if position in self._constants else values[0]


def _read(item: Framed | Filed | DeviceFiled, frames: Sequence[Any]) -> Any:
    """Return the value of an item; raise OSError if its memory cannot be read."""
    if isinstance(item, Framed):
        return frames[item.frame - 1]
    memory = frames[-1 - item.file]
    if isinstance(memory, OSError):  # the memory could not be mapped
        raise memory
    if isinstance(item, DeviceFiled):
        return HeldValue(memory, item.offset_bytes, item.nbytes, item.whole_bytes)
    return part(memory, item.offset_bytes, item.nbytes)
