"""What the pool knows of a registered function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kaas.graph import KTask
from kaas.pool import wire
from kaas.pool.events import ObjectUse
from kaas.pool.packing import constant_key

KNOWN_CONSTANTS = 1024
"""Tuples of constants of one function whose keys are kept ready."""


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A registered function. task_ref: the kTask's bytes in Ray's store, from where each executor takes them once."""

    key: str
    label: str
    spec: wire.FunctionSpec
    task_ref: Any
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    output_bytes: tuple[int, ...]
    inline: bool
    input_bytes: dict[str, int]
    constants: dict[bytes, tuple[ObjectUse, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: wire.FunctionSpec, task: KTask, task_ref: Any) -> RegisteredFunction:
        return cls(
            key=spec.key,
            label=task.label,
            spec=spec,
            task_ref=task_ref,
            outputs=tuple((buffer.dtype, buffer.shape) for buffer in task.outputs),
            output_bytes=tuple(buffer.nbytes for buffer in task.outputs),
            inline=sum(buffer.nbytes for buffer in task.outputs) <= wire.INLINE_OUTPUT_BYTES,
            input_bytes={buffer.name: buffer.nbytes for buffer in task.inputs},
        )

    @property
    def introduction(self) -> tuple[bytes, list[Any]]:
        """What an executor has to be told of it before its first request: the spec, and the reference to the kTask's
        bytes, in a list so that Ray hands over the reference and not the bytes."""
        return wire.encode(self.spec), [self.task_ref]

    def uses(self, invocation: wire.Invocation, refs: Sequence[Any]) -> tuple[ObjectUse, ...]:
        """What a policy hears of a request's inputs."""
        uses = [ObjectUse(None, len(data)) for _, data in invocation.values]
        for item in invocation.objects:
            key = refs[item.ref].binary() if item.shared else None
            uses.append(ObjectUse(key, self.input_bytes[item.buffer]))
        if invocation.constants is not None:
            uses += self._constant_uses(refs[invocation.constants])
        return tuple(uses)

    def places(self, invocation: wire.Invocation, refs: Sequence[Any]) -> dict[bytes, tuple[Any, int | None]]:
        """Where the objects that caches know by a key come from: the reference, and for a constant its entry there."""
        shared = (refs[item.ref] for item in invocation.objects if item.shared)
        places: dict[bytes, tuple[Any, int | None]] = {ref.binary(): (ref, None) for ref in shared}
        if invocation.constants is not None:
            ref = refs[invocation.constants]
            for binding in self.spec.bindings:
                places[constant_key(ref, binding.entry)] = ref, binding.entry
        return places

    def _constant_uses(self, ref: Any) -> tuple[ObjectUse, ...]:
        identity = ref.binary()
        if identity not in self.constants:
            if len(self.constants) == KNOWN_CONSTANTS:
                self.constants.clear()
            self.constants[identity] = tuple(
                ObjectUse(constant_key(ref, binding.entry), self.input_bytes[binding.buffer])
                for binding in self.spec.bindings
            )
        return self.constants[identity]
