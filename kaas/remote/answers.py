"""Errors as remote clients are told: by name, with plain fields and no causes."""

from __future__ import annotations

from typing import Any

from kaas import errors
from kaas.errors import DeviceUnavailable, InvalidRequest, KaasError, PoolStopped, QueueFull
from kaas.remote.wire import Failure

RETRY_S: dict[type[KaasError], float] = {QueueFull: 0.05, PoolStopped: 1.0, DeviceUnavailable: 1.0}
"""After how long a request that failed so may be sent again."""
UNTOLD = ("traceback",)
"""Fields that name the server's files."""
DEEPEST = 8
"""Of lists and maps in a field, one in the other."""
LONGEST_MESSAGE = 16 << 10
"""Characters."""


def failure_of(number: int, error: BaseException) -> Failure:
    """What is not of KaaS is the message's fault: nothing else is known to raise it."""
    if not isinstance(error, KaasError):
        error = InvalidRequest(f"the server cannot make sense of a message: {type(error).__name__}: {error}")
    known = next(base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
    fields = {name: plain(value) for name, value in error.fields.items() if name not in UNTOLD}
    retry_s = fields.get("retry_s", RETRY_S.get(known))
    return Failure(number, known.__name__, _text(error.message)[:LONGEST_MESSAGE], fields, retry_s)


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """As msgpack of any language has it: text, numbers, bytes, lists, maps of text."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return _text(value)
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case tuple() | list() if depth:
            return [plain(item, depth - 1) for item in value]
        case dict() if depth:
            return {_text(str(key)): plain(item, depth - 1) for key, item in value.items()}
        case _:
            return _text(repr(value))


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
