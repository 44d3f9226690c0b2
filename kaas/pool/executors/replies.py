"""What an executor has said, as the core takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaas.errors import InputFailed
from kaas.pool.executors.transport import Reply
from kaas.pool.functions import RegisteredFunction
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import Done
from kaas.wire.outputs import Inline


def whole(done: Done, frames: Sequence[Any]) -> tuple[Done, Sequence[Any]]:
    """For who goes on with it."""
    return done, frames


def plain(done: Done, frames: Sequence[Any]) -> Reply:
    """Of what has no outputs."""
    return failed(done, frames) if done.failed else Reply(None, None, done.record, done.lost)


def direct(done: Done, frames: Sequence[Any]) -> Reply:
    """Of a run: the frames as they came."""
    return failed(done, frames) if done.failed else Reply(frames, None, done.record, done.lost)


def inline(function: RegisteredFunction, done: Done, frames: Sequence[Any]) -> Reply:
    """Of a run: outputs that become arrays where they arrive."""
    if done.failed:
        return failed(done, frames)
    layouts = zip(frames, function.outputs, strict=True)
    values = tuple([Inline(bytes(data), dtype, shape) for data, (dtype, shape) in layouts])
    return Reply(values, None, done.record, done.lost)


def failed(done: Done, frames: Sequence[Any]) -> Reply:
    """The cause stays sealed: nothing of it is run here."""
    return Reply(None, decode_error(frames[0], open_cause=False), done.record, done.lost)


def unreadable(label: str, error: OSError) -> Reply:
    """Of a run that was not asked for, since a client's memory is gone."""
    message = f"an input of {label!r} cannot be read any more: {error}"
    return Reply(error=InputFailed(message, task=label, reason=str(error)))
