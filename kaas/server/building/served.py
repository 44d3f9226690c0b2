"""eTasks that a server's configuration names: functions for clients in addition to their own.

Clients never send Python: an eTask is the operator's code, in a process that has a device to itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from kaas.ktask.arguments import Buffer
from kaas.pool.executors.payloads import Payload
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.functions import RegisteredFunction
from kaas.server.building.invocable_function import InvocableFunction
from kaas.server.config.serve_config import ETaskSettings
from kaas.server.invocation_request import invocation_of
from kaas.server.state.object_store import ObjectStore
from kaas.wire import specs as pool_wire
from kaas.wire.outputs import array_of
from kaas.wire.protocol import Invoke


class ETaskPool(Protocol):
    """The part of a pool on Ray that eTasks need."""

    def define(self, label: str, target: str, outputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> str:
        """Define an eTask: "module:name", and the outputs' names, dtypes and shapes. Return its key."""
        ...

    async def call(
        self, etask: str, client: str, inputs: Mapping[str, Any], deadline_s: float | None, retries: int
    ) -> WorkerCall:
        """Return the call for the pool. Its result are the outputs' frames."""
        ...


@dataclass(frozen=True, slots=True)
class ServedETask:
    """An eTask. key: the pool's. clients: the ones that may use it; None for all."""

    pool: ETaskPool
    key: str
    retries: int
    clients: Collection[str] | None

    async def call(
        self, client: str, message: Invoke, frames: Sequence[Any], remote: InvocableFunction, objects: ObjectStore
    ) -> WorkerCall:
        """Return the call for the pool.

        Raises:
            KaasError
        """
        invocation, payload = invocation_of(client, message, frames, remote, objects)
        inputs = _arrays(invocation, payload, remote.given, objects)
        return await self.pool.call(self.key, client, inputs, message.deadline_s, self.retries)


class ServedETasks:
    """All eTasks of a server. Use an object of this class from one event loop only."""

    def __init__(self, settings: Mapping[str, ETaskSettings], pool: ETaskPool | None) -> None:
        """pool: None for a pool without eTasks; then the configuration names none."""
        self._functions: list[tuple[InvocableFunction, ServedETask]] = []
        for name, each in settings.items():
            assert pool is not None, "the configuration was checked"
            outputs = [(output, dtype, shape) for output, (dtype, shape) in each.outputs.items()]
            etask = ServedETask(pool, pool.define(name, each.function, outputs), each.retries, each.clients)
            self._functions.append((_function(name, each, etask), etask))

    def named(self, client: str, function: str) -> InvocableFunction | None:
        """Return an eTask by name or key, None if the client may not use such a one."""
        return next((each for each in self.all(client) if function in (each.name, each.key)), None)

    def all(self, client: str) -> list[InvocableFunction]:
        """Return the eTasks that a client may use."""
        return [each for each, etask in self._functions if etask.clients is None or client in etask.clients]


NONE_SERVED = ServedETasks({}, None)


def described(function: InvocableFunction) -> dict[str, Any]:
    """Return the description of an eTask for clients."""
    return {
        "name": function.name,
        "function": function.key,
        "label": function.name,
        "etask": True,
        "constants": {},
        "before": function.before,
        "after": function.after,
        **dict(zip(("inputs", "outputs", "scalars"), function.described, strict=True)),
    }


def _function(name: str, settings: ETaskSettings, etask: ServedETask) -> InvocableFunction:
    inputs = {each: Buffer(each, shape, dtype) for each, (dtype, shape) in settings.inputs.items()}
    outputs = [Buffer(each, shape, dtype) for each, (dtype, shape) in settings.outputs.items()]
    key = hashlib.sha256(msgspec.msgpack.encode([name, settings])).hexdigest()
    registered = RegisteredFunction(
        key=key,
        label=name,
        spec=pool_wire.FunctionSpec(key),
        introduction=(b"", b""),
        outputs=tuple((buffer.dtype, buffer.shape) for buffer in outputs),
        output_bytes=tuple(buffer.nbytes for buffer in outputs),
        inline=False,
        input_bytes={each: buffer.nbytes for each, buffer in inputs.items()},
    )
    names = tuple(buffer.name for buffer in outputs)
    return InvocableFunction(name, key, registered, None, inputs, {}, "", names, settings.before, settings.after, etask)


def _arrays(
    invocation: pool_wire.Invocation, payload: Payload, given: Mapping[str, Buffer], objects: ObjectStore
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the inputs of an invocation without copies. They are valid as long as the payload is referenced."""
    data: dict[str, Any] = dict(invocation.values)
    for item in invocation.objects:
        ref, name = payload.refs[item.ref], item.buffer
        if item.shared:
            offset = item.offset_bytes or 0
            data[name] = objects.view(ref)[offset : offset + given[name].nbytes]
        else:
            data[name] = payload.frames[ref.frame - 1]
    return {name: array_of(each, given[name].dtype, given[name].shape) for name, each in data.items()}
