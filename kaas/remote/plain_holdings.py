"""Functions of kTasks as they are, in memory, for a server that keeps nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.arguments import Scalar
from kaas.errors import InvalidRequest
from kaas.graph import KTask
from kaas.pool import wire as pool_wire
from kaas.pool.functions import RegisteredFunction
from kaas.pool.service import Service
from kaas.remote import wire
from kaas.remote.holdings import Kept, Said, Stored


@dataclass(frozen=True, slots=True)
class Plain:
    function: RegisteredFunction
    given: tuple[str, ...]
    scalars: Mapping[str, str]
    iterations: str
    outputs: tuple[str, ...]
    constants: Any | None = None
    before: str = ""
    after: str = ""


class PlainHoldings:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._functions: dict[tuple[str, str], Plain] = {}

    def answer(self, client: str, message: Kept, frames: Sequence[Any]) -> Said:
        if not isinstance(message, wire.Register) or message.constants:
            raise InvalidRequest("this server keeps nothing but functions without constants")
        data = bytes(frames[0])
        task = KTask.from_msgpack(data)
        spec = pool_wire.FunctionSpec(task.key)
        self._service.registry.register(pool_wire.encode(spec), data)
        function = self._service.registry.get(spec.key)
        assert function is not None, "it was registered"
        iterations = task.iterations.name if isinstance(task.iterations, Scalar) else ""
        inputs = {buffer.name: (buffer.dtype, buffer.shape) for buffer in task.inputs}
        outputs = {buffer.name: (buffer.dtype, buffer.shape) for buffer in task.outputs}
        plain = Plain(function, tuple(inputs), dict(task.scalars), iterations, tuple(outputs))
        for name in filter(None, (message.name, spec.key)):
            self._functions[client, name] = plain
        return wire.Registered(message.number, spec.key, inputs, outputs), ()

    def function(self, client: str, name: str) -> Plain:
        plain = self._functions.get((client, name))
        if plain is None:
            raise InvalidRequest(f"no function {name!r} is registered")
        return plain

    def value(self, client: str, name: str) -> Stored:  # noqa: ARG002
        raise InvalidRequest(f"there is no object {name!r}")

    def check_room(self, client: str, outputs: Mapping[str, int]) -> None:
        raise InvalidRequest("this server keeps no objects")

    def store(self, client: str, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> Awaitable[None]:
        raise InvalidRequest("this server keeps no objects")
