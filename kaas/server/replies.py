"""Errors in replies to remote clients: by name, with plain fields, without causes and paths of the server."""

from __future__ import annotations

import re
from typing import Any

from kaas import errors
from kaas.errors import (
    MEMCHECK_TELLS_MORE,
    DeviceError,
    DeviceUnavailable,
    ETaskFailed,
    ExecutorDied,
    InputFailed,
    InvalidCode,
    InvalidRequest,
    KaasError,
    PolicyError,
    PoolStopped,
    Quarantined,
    QueueFull,
    ResultLost,
    StepFailed,
    UsageUnavailable,
)
from kaas.wire.error_codec import as_text
from kaas.wire.protocol import Failure

RETRY_S: dict[type[KaasError], float] = {QueueFull: 0.05, PoolStopped: 1.0, DeviceUnavailable: 1.0}
"""Seconds after which a request with this error may be sent again."""
HIDDEN_FIELDS = ("path", "traceback")
"""Fields that name the server's files."""
FOREIGN_FIELDS = ("reason", "story")
"""Fields with text of the system, of a compiler or of the operator's functions."""
FOREIGN_ERRORS = (
    DeviceUnavailable,
    ETaskFailed,
    ExecutorDied,
    InputFailed,
    InvalidCode,
    PolicyError,
    Quarantined,
    ResultLost,
    StepFailed,
    UsageUnavailable,
)
"""Errors whose message has such text. All other messages have only text of KaaS and of the client."""
HIDDEN = "\u2026"
_PATH = re.compile(
    r"""'~?/[^'\n]*'|"~?/[^"\n]*"|"""  # in quotes a path may have blanks
    r"""file:/+[^\s'"]+|"""
    r"""(?<![\w./~-])(?P<option>-[A-Za-z]+(?=/))?~?(?:(?<!:)/+|/)"""  # -I/usr/include, but not tcp://
    r"""(?=[^\s'"():;,<>/])(?:(?:[^'"():;,<>\n]|(?<=\w)'(?=\w))*/)?"""  # blanks are allowed up to the last /
    r"""(?:[^\s'"():;,<>]|(?<=\w)'(?=\w))*"""
)
"""In a line of paths and other words, all up to the last / is hidden: better too much than the name of a file."""
OF_DEVICES = (DeviceError, DeviceUnavailable, ExecutorDied, Quarantined, ResultLost)
"""Errors whose message may have a driver's text about a fault."""
_NEAREST = re.compile(r",? ?\d+ bytes [a-z ]{1,40}the nearest buffer(?: \([^()]*\))?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DEEPEST = 8
"""How deep lists and maps in a field may nest."""
LONGEST_MESSAGE = 16 << 10
"""Characters of a message, and of any text in a field."""


def failure_of(number: int, error: BaseException) -> Failure:
    """Return the reply for an error. Foreign errors but OSError count as InvalidRequest: only messages cause them."""
    if isinstance(error, OSError) and not isinstance(error, KaasError):
        error = KaasError(f"the server cannot do it: {error.strerror or type(error).__name__}")
    elif not isinstance(error, KaasError):
        error = InvalidRequest(f"the server cannot handle a message: {type(error).__name__}: {error}")
    known = next(base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
    fields = {name: _field(name, value) for name, value in error.fields.items() if name not in HIDDEN_FIELDS}
    retry_s = fields.get("retry_s", RETRY_S.get(known))
    return Failure(number, known.__name__, message_of(error)[:LONGEST_MESSAGE], fields, retry_s)


def message_of(error: KaasError) -> str:
    """Return the message of an error, without paths and addresses of the server."""
    message = error.message[:LONGEST_MESSAGE]  # before the search: a client may cause it by a step
    if type(error) is KaasError or isinstance(error, FOREIGN_ERRORS):
        message = without_paths(message)
    return as_text(without_addresses(message) if isinstance(error, OF_DEVICES) else message)


def without_paths(text: str) -> str:
    """Return a text with all paths hidden."""
    return as_text(_PATH.sub(rf"\g<option>{HIDDEN}", text) if "/" in text else text)


def without_addresses(text: str) -> str:
    """Return a device's message without addresses and neighboring buffers, which may be of another client."""
    return _ADDRESS.sub(HIDDEN, _NEAREST.sub("", text.replace(MEMCHECK_TELLS_MORE, "")))


def _field(name: str, value: Any) -> Any:
    if name not in FOREIGN_FIELDS:
        return plain(value)
    if isinstance(value, str):
        return _foreign_text(value)
    return [_foreign_text(str(each)) for each in value]


def _foreign_text(text: str) -> str:
    return without_addresses(without_paths(text[:LONGEST_MESSAGE]))


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """Return a value as plain msgpack: text, numbers, bytes, lists, maps of text."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return as_text(value[:LONGEST_MESSAGE])
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case tuple() | list() if depth:
            return [plain(item, depth - 1) for item in value]
        case dict() if depth:
            return {as_text(str(key)): plain(item, depth - 1) for key, item in value.items()}
        case _:
            return as_text(repr(value))
