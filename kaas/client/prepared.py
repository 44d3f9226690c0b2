"""Checks a call of a function, and makes the message for the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaas.api.function import Options
from kaas.client.open_calls import OpenCall
from kaas.client.remote_calls import RemoteCalls
from kaas.client.remote_function import RemoteFunction, check_object_name, packed
from kaas.errors import InvalidRequest
from kaas.ktask.arguments import is_text
from kaas.ktask.request import encode_scalars, mapping
from kaas.wire import protocol

KEY_BYTES = 64
"""The longest idempotency key."""


def prepare(
    calls: RemoteCalls,
    function: RemoteFunction,
    inputs: Mapping[str, Any] | None,
    scalars: Mapping[str, Any] | None,
    deadline_s: float | None,
    key: str,
    store: Mapping[str, str] | None,
    trace: str,
) -> OpenCall:
    """Return a checked call, ready to be sent. Its deadline counts from now.

    Raises:
        InvalidRequest: an argument does not fit the function, or is malformed.
    """
    if deadline_s is not None:
        Options(deadline_s=deadline_s)
    if key and not (is_text(key) and len(key.encode()) <= KEY_BYTES):
        raise InvalidRequest(f"a key is text of up to {KEY_BYTES} bytes, not {key!r}")
    if trace and not is_text(trace):
        raise InvalidRequest(f"trace is a W3C traceparent, not {trace!r}")
    task, given = function.chosen(mapping(function.tasks[0], "inputs", inputs))
    named, frames = packed(task, given)
    encoded = encode_scalars(task, scalars) if scalars or task.scalars else {}
    make, reply_bytes, kept = task.make, task.reply_bytes, {}
    if store:
        kept = dict(mapping(task, "store", store))
        for name in kept.values():
            check_object_name(name)
        make = task.making(kept)
        reply_bytes -= sum(task.output_bytes.get(name, 0) for name in kept)
    number = next(calls.numbers)
    own_key = key or f"{calls.key_prefix}{number}"
    invoke = protocol.Invoke(number, task.key, named, encoded, own_key, deadline_s, kept, trace)
    return OpenCall(calls, invoke, frames, sum(map(len, frames)) + reply_bytes, make, task.label, task.after)
