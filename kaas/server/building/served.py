"""eTasks that a server's configuration names: functions of all clients that may use them, beside each client's own.

A client never sends Python; what runs is the operator's code, in a process that has a device to itself.
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
from kaas.server.building.remote_function import InvocableFunction
from kaas.server.config.serve_config import ETaskSettings
from kaas.server.invocation_request import invocation_of
from kaas.server.state.object_store import ObjectStore
from kaas.wire import specs as pool_wire
from kaas.wire.outputs import array_of
from kaas.wire.protocol import Invoke


class ETaskPool(Protocol):
    """A pool on Ray, as this needs it."""

    def define(self, label: str, target: str, outputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> str:
        """Make an eTask known: "module:name", and the outputs' names, dtypes and shapes. Gives its key."""
        ...

    async def call(
        self, etask: str, client: str, inputs: Mapping[str, Any], deadline_s: float | None, retries: int
    ) -> WorkerCall:
        """What the pool is asked for; its answer are the outputs' frames."""
        ...


@dataclass(frozen=True, slots=True)
class ServedETask:
    """key: the pool's. clients: who may use it; None for all."""

    pool: ETaskPool
    key: str
    retries: int
    clients: Collection[str] | None

    async def call(
        self, client: str, message: Invoke, frames: Sequence[Any], remote: InvocableFunction, values: ObjectStore
    ) -> WorkerCall:
        """
        Raises:
            KaasError
        """
        invocation, payload = invocation_of(client, message, frames, remote, values)
        inputs = _arrays(invocation, payload, remote.given, values)
        return await self.pool.call(self.key, client, inputs, message.deadline_s, self.retries)


class ServedETasks:
    """Belongs to one event loop."""

    def __init__(self, settings: Mapping[str, ETaskSettings], pool: ETaskPool | None) -> None:
        """pool: None for one without eTasks, of which the configuration then names none."""
        self._functions: list[tuple[InvocableFunction, ServedETask]] = []
        for name, each in settings.items():
            assert pool is not None, "the configuration was checked"
            outputs = [(output, dtype, shape) for output, (dtype, shape) in each.outputs.items()]
            etask = ServedETask(pool, pool.define(name, each.function, outputs), each.retries, each.clients)
            self._functions.append((_function(name, each, etask), etask))

    def named(self, client: str, function: str) -> InvocableFunction | None:
        """By name or key."""
        return next((each for each in self.all(client) if function in (each.name, each.key)), None)

    def all(self, client: str) -> list[InvocableFunction]:
        """That a client may use."""
        return [each for each, etask in self._functions if etask.clients is None or client in etask.clients]


NONE_SERVED = ServedETasks({}, None)


def described(function: InvocableFunction) -> dict[str, Any]:
    """As a client is told."""
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
    invocation: pool_wire.Invocation, payload: Payload, given: Mapping[str, Buffer], values: ObjectStore
) -> dict[str, np.ndarray[Any, Any]]:
    """What an invocation brings, where it lies, as long as somebody refers to the payload."""
    data: dict[str, Any] = dict(invocation.values)
    for item in invocation.objects:
        ref, name = payload.refs[item.ref], item.buffer
        if item.shared:
            offset = item.offset_bytes or 0
            data[name] = values.view(ref)[offset : offset + given[name].nbytes]
        else:
            data[name] = payload.frames[ref.frame - 1]
    return {name: array_of(each, given[name].dtype, given[name].shape) for name, each in data.items()}
