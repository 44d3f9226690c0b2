"""A function of a client, ready to be invoked: what `function_builder` makes and `invocations` uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kaas.ktask.arguments import Buffer
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.functions import RegisteredFunction
from kaas.pool.on_processes.objects import HeldObject
from kaas.server.state.object_store import ObjectStore
from kaas.wire.protocol import Invoke

Arrays = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape by name."""
KEY_SHOWN = 8
"""Digits of a key in labels, which tell functions of one kTask apart."""


class ServedCall(Protocol):
    """The part of an eTask of the server that an invocation needs."""

    async def call(
        self, client: str, message: Invoke, frames: Sequence[Any], remote: InvocableFunction, objects: ObjectStore
    ) -> WorkerCall:
        """Return the call for the pool.

        Raises:
            KaasError
        """
        ...


def label_of(name: str, key: str, task_label: str, constants: HeldObject | None) -> str:
    """Return the label of a function: its name, or its kTask's label, with digits of its key if it has constants."""
    return name or (task_label if constants is None else f"{task_label}/{key[:KEY_SHOWN]}")


@dataclass(frozen=True, slots=True)
class InvocableFunction:
    """A function of a client's, ready to be invoked.

    Fields:
        name: "" for none. key: identifies it for the client; it differs by constants, unlike that of `function`.
        constants: the pool's object of all together. given: inputs that an invocation must send, in order. scalars:
            their kinds. iterations: the scalar with the number of runs of the kernels, "" for none. outputs: names.
        before, after: the server's cTasks around it. etask: the server's eTask; None for a kTask. label: in usage,
            statistics, traces and the log: its name, or else its kTask's label, with digits of its key if it has
            constants.
    """

    name: str
    key: str
    function: RegisteredFunction = field(repr=False)
    constants: HeldObject | None
    given: Mapping[str, Buffer] = field(repr=False)
    scalars: Mapping[str, str]
    iterations: str
    outputs: tuple[str, ...]
    before: str = ""
    after: str = ""
    etask: ServedCall | None = field(default=None, repr=False)
    label: str = field(init=False)

    def __post_init__(self) -> None:
        label = label_of(self.name, self.key, self.function.label, self.constants)
        object.__setattr__(self, "label", label)  # once: each request needs it

    @property
    def described(self) -> tuple[Arrays, Arrays, dict[str, str]]:
        """Its inputs, its outputs, its scalars, each by name."""
        inputs = {name: (buffer.dtype, buffer.shape) for name, buffer in self.given.items()}
        outputs = dict(zip(self.outputs, self.function.outputs, strict=True))
        return inputs, outputs, dict(self.scalars)
