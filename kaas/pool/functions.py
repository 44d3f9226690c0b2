"""What the pool knows of a registered function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kaas.ktask.arguments import Buffer
from kaas.scheduling.events import ObjectUse
from kaas.wire import specs
from kaas.wire.packing import constant_key

KNOWN_CONSTANTS = 1024
"""Tuples of constants of one function whose keys are kept ready."""


class Described(Protocol):
    """A kTask, or what is known of one whose kernels nobody has looked at."""

    @property
    def label(self) -> str: ...

    @property
    def inputs(self) -> Sequence[Buffer]: ...

    @property
    def outputs(self) -> Sequence[Buffer]: ...


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A registered function. introduction: what an executor is told of it once: the spec, and the kTask's bytes."""

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

    def uses(self, invocation: specs.Invocation, refs: Sequence[Any]) -> tuple[ObjectUse, ...]:
        """What a policy hears of a request's inputs."""
        uses = [ObjectUse(None, len(data)) for _, data in invocation.values]
        for item in invocation.objects:
            key = refs[item.ref].binary() if item.shared else None
            uses.append(ObjectUse(key, self.input_bytes[item.buffer]))
        if invocation.constants is not None:
            uses += self._bound(refs[invocation.constants])[1]
        return tuple(uses)

    def bound(self, invocation: specs.Invocation, refs: Sequence[Any]) -> str:
        """What names the function with the constants of an invocation; "" if it has none."""
        return "" if invocation.constants is None else self._bound(refs[invocation.constants])[0]

    def places(self, invocation: specs.Invocation, refs: Sequence[Any]) -> dict[bytes, tuple[Any, int | None]]:
        """Where the objects that caches know by a key come from: the reference, and for a constant its entry there."""
        shared = (refs[item.ref] for item in invocation.objects if item.shared)
        places: dict[bytes, tuple[Any, int | None]] = {ref.binary(): (ref, None) for ref in shared}
        if invocation.constants is not None:
            ref = refs[invocation.constants]
            for binding in self.spec.bindings:
                places[constant_key(ref, binding.entry)] = ref, binding.entry
        return places

    def _bound(self, ref: Any) -> tuple[str, tuple[ObjectUse, ...]]:
        """The function's name with these constants, and what a policy hears of them."""
        identity = ref.binary()
        if identity not in self.constants:
            if len(self.constants) == KNOWN_CONSTANTS:
                self.constants.clear()
            uses = tuple(
                ObjectUse(constant_key(ref, binding.entry), self.input_bytes[binding.buffer])
                for binding in self.spec.bindings
            )
            self.constants[identity] = f"{self.key}@{identity.hex()}", uses
        return self.constants[identity]
