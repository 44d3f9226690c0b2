"""The functions of a pool: `RegisteredFunction`, and the `Registry` of all. The pool's store keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kaas.errors import InvalidRequest, KaasError
from kaas.ktask.arguments import Buffer
from kaas.ktask.graph import KTask
from kaas.pool.executors.transport import WorkerCall
from kaas.scheduling.events import ObjectUse
from kaas.store import FUNCTIONS, TASKS, Store, decoded
from kaas.wire import specs
from kaas.wire.packing import constant_key

KNOWN_CONSTANTS = 1024
"""Number of tuples of constants, of one function, whose keys are cached."""

UNUSED_BYTES = 16 << 20
"""The kTasks of programs that have ended, which the pool keeps for later programs with the same functions."""

REGISTRATION_LIMIT_S = 30.0
"""Longest wait of a request for the registration of its function or eTask, which is another message."""


class Described(Protocol):
    """A kTask, or the description of a kTask whose kernels this process has not read."""

    @property
    def label(self) -> str: ...

    @property
    def inputs(self) -> Sequence[Buffer]: ...

    @property
    def outputs(self) -> Sequence[Buffer]: ...


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A registered function. introduction: sent to each executor once: the spec, and the kTask's bytes."""

    key: str
    label: str
    spec: specs.FunctionSpec
    introduction: tuple[bytes, bytes] = field(repr=False)
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    output_bytes: tuple[int, ...]
    inline: bool
    input_bytes: dict[str, int]
    constants: dict[bytes, tuple[str, tuple[ObjectUse, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: specs.FunctionSpec, task: Described, task_bytes: bytes) -> RegisteredFunction:
        """Return the function of a spec and its kTask."""
        return cls(
            key=spec.key,
            label=task.label,
            spec=spec,
            introduction=(specs.encode(spec), task_bytes),
            outputs=tuple((buffer.dtype, buffer.shape) for buffer in task.outputs),
            output_bytes=tuple(buffer.nbytes for buffer in task.outputs),
            inline=sum(buffer.nbytes for buffer in task.outputs) <= specs.INLINE_OUTPUT_BYTES,
            input_bytes={buffer.name: buffer.nbytes for buffer in task.inputs},
        )

    def call(
        self, invocation: specs.Invocation, payload: Any, refs: Sequence[Any], session: str, label: str = ""
    ) -> WorkerCall:
        """Return an invocation of this function for the core.

        Args:
            invocation: what to run.
            payload: for the transport.
            refs: the objects that the invocation names.
            session: of the program, "" if it is unknown.
            label: the function's name for people; the label of its kTask if this is empty.
        """
        uses = [ObjectUse(None, len(data)) for _, data in invocation.values]
        for item in invocation.objects:
            key = refs[item.ref].binary() if item.shared else None
            uses.append(ObjectUse(key, self.input_bytes[item.buffer]))
        bound = ""
        if invocation.constants is not None:
            bound, constants = self._bound(refs[invocation.constants])
            uses += constants
        return WorkerCall(
            label or self.label,
            invocation.client,
            invocation.deadline_s,
            invocation.retries,
            tuple(uses),
            payload,
            self.key,
            session=session,
            bound=bound,
            task=self.spec.task_key,
        )

    def places(self, invocation: specs.Invocation, refs: Sequence[Any]) -> dict[bytes, tuple[Any, int | None]]:
        """Return the sources of cached objects, by key: the reference, and a constant's entry in it (else None)."""
        shared = (refs[item.ref] for item in invocation.objects if item.shared)
        places: dict[bytes, tuple[Any, int | None]] = {ref.binary(): (ref, None) for ref in shared}
        if invocation.constants is not None:
            ref = refs[invocation.constants]
            for binding in self.spec.bindings:
                places[constant_key(ref, binding.entry)] = ref, binding.entry
        return places

    def _bound(self, ref: Any) -> tuple[str, tuple[ObjectUse, ...]]:
        """Return the function's name with these constants, and the constants for the policy."""
        identity = ref.binary()
        if identity not in self.constants:
            if len(self.constants) == KNOWN_CONSTANTS:
                self.constants.clear()
            uses = tuple(
                ObjectUse(constant_key(ref, binding.entry), self.input_bytes[binding.buffer], constant=True)
                for binding in self.spec.bindings
            )
            self.constants[identity] = f"{self.key}@{identity.hex()}", uses
        return self.constants[identity]


class Registry:
    """All functions. Use an object of this class from one event loop only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._functions: dict[str, RegisteredFunction] = {}
        self._tasks: dict[str, bytes] = {}
        self._expected: dict[str, asyncio.Future[RegisteredFunction]] = {}
        self._lent: dict[str, list[str]] = {}  # names by key; a name occurs once for each `lend`
        self._users: dict[str, set[str | None]] = {}  # sessions by the key of a function that they registered
        self._unused: dict[str, None] = {}  # keys of functions that only ended sessions registered, the oldest first
        tasks = decoded(store, TASKS, lambda data: (KTask.from_msgpack(data), data))
        for spec in decoded(store, FUNCTIONS, specs.decode_function).values():
            task, data = tasks.get(spec.task_key, (None, b""))
            if task is not None and task.key == spec.task_key:
                self._add(spec, task, data)
                self._users[spec.key] = {None}

    def get(self, key: str) -> RegisteredFunction | None:
        """Return a function, or None if it is not registered."""
        return self._functions.get(key)

    @property
    def labels(self) -> tuple[str, ...]:
        """The functions' names for people: the owners' names if they were lent, else their kTasks' labels."""
        return tuple(
            f"{label} of {function.spec.owner}" if function.spec.owner else label
            for key, function in self._functions.items()
            for label in dict.fromkeys(self._lent.get(key, [function.label]))
        )

    def register(self, spec: bytes, task: bytes, session: str | None = None) -> None:
        """Register a function, for later epochs of the pool too. A second call of a session changes nothing.

        session: of the program that announces the function, each time it connects; None: the function stays.

        Raises:
            KaasError: these bytes are not the kTask of the function.
        """
        function = specs.decode_function(spec)
        if function.key not in self._functions:
            self._register(function, spec, task)
        self._users.setdefault(function.key, set()).add(session)
        self._unused.pop(function.key, None)

    def _register(self, function: specs.FunctionSpec, spec: bytes, task: bytes) -> None:
        decoded = KTask.from_msgpack(task)
        unknown = {binding.buffer for binding in function.bindings} - {buffer.name for buffer in decoded.inputs}
        if decoded.key != function.task_key or unknown:
            raise InvalidRequest(f"kTask {decoded.label!r} is not the kTask of the function", task=decoded.label)
        self._store.put(TASKS, {function.task_key: task})
        self._store.put(FUNCTIONS, {function.key: spec})
        registered = self._add(function, decoded, task)
        expected = self._expected.pop(function.key, None)
        if expected is not None:
            expected.set_result(registered)

    def session_ended(self, session: str) -> None:
        """Forget the functions that only ended sessions registered, the oldest first, beyond UNUSED_BYTES."""
        for key, users in list(self._users.items()):
            users.discard(session)
            if not users:
                del self._users[key]
                self._unused[key] = None
        unused_bytes = sum(len(self._functions[key].introduction[1]) for key in self._unused)
        forgotten = []
        while unused_bytes > UNUSED_BYTES:
            key = next(iter(self._unused))
            del self._unused[key]
            unused_bytes -= len(self._functions[key].introduction[1])
            forgotten.append(key)
        if forgotten:
            kept = {self._functions[key].spec.task_key for key in (*self._users, *self._unused)}
            self._store.remove(FUNCTIONS, forgotten)
            self._store.remove(TASKS, {self._functions[key].spec.task_key for key in forgotten} - kept)
            self._forget(key for key in forgotten if key not in self._lent)

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._functions[key]
        gone = self._tasks.keys() - {function.spec.task_key for function in self._functions.values()}
        for task_key in gone:
            del self._tasks[task_key]

    def lend(self, spec: specs.FunctionSpec, task: Described, data: bytes, label: str) -> RegisteredFunction:
        """Register a function of an owner, until `give_back` was called as often as `lend`.

        `data` is the kTask, `label` the owner's name for the function. The owner, not the pool's store, keeps the
        function for later epochs of the pool.
        """
        self._lent.setdefault(spec.key, []).append(label)
        return self._functions.get(spec.key) or self._add(spec, task, data)

    def give_back(self, key: str, label: str) -> None:
        """Undo `lend`."""
        self._lent[key].remove(label)
        if self._lent[key]:
            return
        del self._lent[key]
        if key not in self._users and key not in self._unused:
            self._forget([key])

    def _add(self, spec: specs.FunctionSpec, task: Described, data: bytes) -> RegisteredFunction:
        data = self._tasks.setdefault(spec.task_key, data)  # the same bytes for all functions of one kTask
        added = RegisteredFunction.of(spec, task, data)
        self._functions[spec.key] = added
        return added

    async def registered(self, key: str) -> RegisteredFunction:
        """Return a function once it is registered.

        Messages to an asyncio actor may overtake each other, so an invocation may come before its function.

        Raises:
            KaasError: no program registers the function in time.
        """
        expected = self._expected.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.wait_for(asyncio.shield(expected), REGISTRATION_LIMIT_S)
        except TimeoutError as error:
            raise KaasError(f"the pool does not know function {key}") from error
