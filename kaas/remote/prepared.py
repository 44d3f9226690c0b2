"""A call of a function at a server, checked, and what is still open of it until it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from kaas.errors import InvalidRequest, RequestTooLarge
from kaas.function import Options
from kaas.remote import wire
from kaas.remote.remote_function import Make, Packed, RemoteFunction, RemoteTask, packed

KEY_BYTES = 64
"""Of a key of idempotency, at most."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call, checked. nbytes: what it takes of the client's credit."""

    task: RemoteTask
    packed: Packed
    deadline_s: float | None
    key: str
    store: dict[str, str]
    trace: str
    make: Make
    nbytes: int
    begun_s: float

    def invoke(self, session: str) -> Callable[[int], wire.Invoke]:
        """Of the number that it gets. Its deadline counts from when it was prepared."""
        left_s = self.deadline_s
        if left_s is not None:
            left_s = max(1e-3, left_s - (monotonic() - self.begun_s))
        return lambda number: wire.Invoke(
            number,
            self.task.key,
            self.packed.inputs,
            self.packed.scalars,
            self.key or f"{session}-{number}",
            left_s,
            self.store,
            self.trace,
        )

    def check(self, limits: wire.Limits | None) -> None:
        """
        Raises:
            RequestTooLarge: an input is more than one message may carry
        """
        most = max(map(len, self.packed.frames), default=0)
        if limits is not None and most > limits.frame_bytes:
            raise RequestTooLarge(
                f"an input of {most} bytes is more than one message to the server may carry, {limits.frame_bytes}: "
                "put it there first",
                needed_bytes=most,
                capacity_bytes=limits.frame_bytes,
                excess_bytes=most - limits.frame_bytes,
                task=self.task.label,
            )


def prepare(
    function: RemoteFunction,
    inputs: Mapping[str, Any] | None,
    scalars: Mapping[str, Any] | None,
    deadline_s: float | None,
    key: str,
    store: Mapping[str, str] | None,
    trace: str,
) -> Prepared:
    """
    Raises:
        InvalidRequest
    """
    begun_s = 0.0
    if deadline_s is not None:
        Options(deadline_s=deadline_s)
        begun_s = monotonic()
    if key and not (isinstance(key, str) and len(key.encode()) <= KEY_BYTES):
        raise InvalidRequest(f"a key is text of up to {KEY_BYTES} bytes, not {key!r}")
    task, given = function.chosen({} if inputs is None else inputs)
    sent = packed(task, given, scalars)
    kept = dict(store or {})
    make = task.making(kept)
    nbytes = sent.nbytes + sum([size for name, size in task.output_bytes.items() if name not in kept])
    return Prepared(task, sent, deadline_s, key, kept, trace, make, nbytes, begun_s)
