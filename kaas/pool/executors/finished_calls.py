"""The replies of executors, as the core takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from kaas.errors import InputFailed, KaasError
from kaas.pool.executors.transport import WorkerReply
from kaas.pool.functions import RegisteredFunction
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import ExecutorReply
from kaas.wire.outputs import InlineOutput


def whole(done: ExecutorReply, frames: Sequence[Any]) -> tuple[ExecutorReply, Sequence[Any]]:
    """Return a reply unchanged."""
    return done, frames


def plain(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a command without outputs."""
    return failed(done, frames) if done.failed else WorkerReply(None, None, done.record, done.lost)


def direct(function: RegisteredFunction, done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run, with its frames unchanged.

    Raises:
        ValueError: they are not the outputs.
    """
    if done.failed:
        return failed(done, frames)
    if tuple(map(len, frames)) != function.output_bytes:
        raise ValueError(f"outputs of {list(map(len, frames))} bytes, in place of {list(function.output_bytes)}")
    return WorkerReply(frames, None, done.record, done.lost)


def inline(function: RegisteredFunction, done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run, with outputs that become arrays in the caller's process; raise as `direct` does."""
    reply = direct(function, done, frames)
    if reply.error is not None:
        return reply
    layouts = zip(frames, function.outputs, strict=True)
    values = tuple([InlineOutput(bytes(data), dtype, shape) for data, (dtype, shape) in layouts])
    return WorkerReply(values, None, done.record, done.lost)


def failed(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a failed run. The cause stays encoded, since its code must not run in the pool."""
    error = decode_error(frames[0], open_cause=False)
    keep_typed(error)
    return WorkerReply(None, error, done.record, done.lost)


def keep_typed(error: KaasError) -> None:
    """Remove the fields, of an error and of those that caused it, that have other types than their classes declare.

    An executor that its client's kernels have taken over sends any: code that reads the fields relies on the types.
    """
    cause: BaseException | None = error
    while isinstance(cause, KaasError):
        types = get_type_hints(type(cause))
        for name, value in cause.fields.items():
            try:
                msgspec.convert(value, types[name])
            except msgspec.ValidationError:
                delattr(cause, name)
        cause = cause.__cause__


def unsent(label: str, error: OSError) -> WorkerReply:
    """Return the reply of a run that was not sent: a program's memory is gone, or the pool has no room for it."""
    gone = InputFailed(f"an input of {label!r} cannot be read any more: {error}", task=label, reason=str(error))
    return WorkerReply(error=error if isinstance(error, KaasError) else gone)
