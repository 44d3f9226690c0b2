"""The functions that a pool knows: told by drivers, and kept in its store."""

from __future__ import annotations

import asyncio

from kaas.errors import InvalidRequest, KaasError
from kaas.ktask.graph import KTask
from kaas.pool.functions import Described, RegisteredFunction
from kaas.store import FUNCTIONS, TASKS, Store
from kaas.wire import specs

REGISTRATION_LIMIT_S = 30.0
"""How long a request waits for the registration of its function, which another message brings."""


class Registry:
    """Belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._functions: dict[str, RegisteredFunction] = {}
        self._tasks: dict[str, bytes] = {}
        self._expected: dict[str, asyncio.Future[RegisteredFunction]] = {}
        self._lent: dict[str, list[str]] = {}  # by which names, each as often as it is
        tasks = store.read(TASKS)
        for spec in map(specs.decode_function, store.read(FUNCTIONS).values()):
            if spec.task_key in tasks:
                self._add(spec, KTask.from_msgpack(tasks[spec.task_key]), tasks[spec.task_key])

    def get(self, key: str) -> RegisteredFunction | None:
        return self._functions.get(key)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of functions for people: those that they were lent by, or else their kTasks' labels."""
        known = self._functions.items()
        return tuple(label for key, function in known for label in dict.fromkeys(self._lent.get(key, [function.label])))

    def register(self, spec: bytes, task: bytes) -> None:
        """Make a function known; once more changes nothing. What is kept for later lives of the pool makes sense.

        Raises:
            KaasError: these bytes are not the kTask that the function names.
        """
        function = specs.decode_function(spec)
        if function.key in self._functions:
            return
        decoded = KTask.from_msgpack(task)
        strange = {binding.buffer for binding in function.bindings} - {buffer.name for buffer in decoded.inputs}
        if decoded.key != function.task_key or strange:
            raise InvalidRequest(f"kTask {decoded.label!r} is not the one that a function names", task=decoded.label)
        self._store.put(TASKS, {function.task_key: task})
        self._store.put(FUNCTIONS, {function.key: spec})
        registered = self._add(function, decoded, task)
        expected = self._expected.pop(function.key, None)
        if expected is not None:
            expected.set_result(registered)

    def lend(self, spec: specs.FunctionSpec, task: Described, data: bytes, label: str) -> RegisteredFunction:
        """Make a function with an owner known until it is given back as often; data: the kTask. label: what its owner
        knows it by. The caller keeps it for later lives of the pool."""
        self._lent.setdefault(spec.key, []).append(label)
        return self._functions.get(spec.key) or self._add(spec, task, data)

    def give_back(self, key: str, label: str) -> None:
        """Undo `lend`."""
        self._lent[key].remove(label)
        if self._lent[key]:
            return
        del self._lent[key]
        task_key = self._functions.pop(key).spec.task_key
        if not any(function.spec.task_key == task_key for function in self._functions.values()):
            del self._tasks[task_key]

    def _add(self, spec: specs.FunctionSpec, task: Described, data: bytes) -> RegisteredFunction:
        data = self._tasks.setdefault(spec.task_key, data)  # the same bytes for all functions of one kTask
        added = RegisteredFunction.of(spec, task, data)
        self._functions[spec.key] = added
        return added

    async def registered(self, key: str) -> RegisteredFunction:
        """A function once it is known: messages to an asyncio actor may overtake each other, the invocation its
        function's registration too.

        Raises:
            KaasError: nobody has told of it.
        """
        expected = self._expected.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.wait_for(asyncio.shield(expected), REGISTRATION_LIMIT_S)
        except TimeoutError as error:
            raise KaasError(f"the pool has not been told of function {key}") from error
