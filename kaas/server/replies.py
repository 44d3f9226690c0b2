"""Errors as remote clients are told: by name, with plain fields, no causes, and no names of the server's files."""

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
from kaas.wire.protocol import Failure

RETRY_S: dict[type[KaasError], float] = {QueueFull: 0.05, PoolStopped: 1.0, DeviceUnavailable: 1.0}
"""After how long a request that failed so may be sent again."""
UNTOLD = ("path", "traceback")
"""Fields that name the server's files."""
SAID = ("reason", "story")
"""Fields with the words of others: the system's, a compiler's, those of the operator's functions."""
PASSED_ON = (
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
"""Errors whose message has such words. In all others there are none but KaaS's and the client's own."""
HIDDEN = "\u2026"
_PATH = re.compile(
    r"""'~?/[^'\n]*'|"~?/[^"\n]*"|"""  # in quotes it may have blanks
    r"""file:/+[^\s'"]+|"""
    r"""(?<![\w./~-])(?P<option>-[A-Za-z]+(?=/))?~?(?:(?<!:)/+|/)"""  # -I/usr/include, but not tcp://
    r"""(?=[^\s'"():;,<>/])(?:(?:[^'"():;,<>\n]|(?<=\w)'(?=\w))*/)?"""  # it may have blanks, as far as to its last /
    r"""(?:[^\s'"():;,<>]|(?<=\w)'(?=\w))*"""
)
"""Of a line of paths and other words all goes up to the last /: better too much than a name."""
OF_DEVICES = (DeviceError, DeviceUnavailable, ExecutorDied, Quarantined, ResultLost)
"""Errors whose message may have a driver's words on a fault."""
_NEAREST = re.compile(r",? ?\d+ bytes [a-z ]{1,40}the nearest buffer(?: \([^()]*\))?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DEEPEST = 8
"""Of lists and maps in a field, one in the other."""
LONGEST_MESSAGE = 16 << 10
"""Characters, as of any text in a field."""


def failure_of(number: int, error: BaseException) -> Failure:
    """What is not of KaaS is the message's fault, unless it is the system's: nothing else is known to raise it."""
    if isinstance(error, OSError) and not isinstance(error, KaasError):
        error = KaasError(f"the server cannot do it: {error.strerror or type(error).__name__}")
    elif not isinstance(error, KaasError):
        error = InvalidRequest(f"the server cannot make sense of a message: {type(error).__name__}: {error}")
    known = next(base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
    fields = {name: _field(name, value) for name, value in error.fields.items() if name not in UNTOLD}
    retry_s = fields.get("retry_s", RETRY_S.get(known))
    return Failure(number, known.__name__, message_of(error)[:LONGEST_MESSAGE], fields, retry_s)


def message_of(error: KaasError) -> str:
    """What is wrong, in a sentence."""
    message = error.message[:LONGEST_MESSAGE]  # before it is looked through: it may be a client's own, by a step
    if type(error) is KaasError or isinstance(error, PASSED_ON):
        message = without_paths(message)
    return _text(without_addresses(message) if isinstance(error, OF_DEVICES) else message)


def without_paths(text: str) -> str:
    return _text(_PATH.sub(rf"\g<option>{HIDDEN}", text) if "/" in text else text)


def without_addresses(text: str) -> str:
    """A device's words without what they tell of memory: whose it is beside the client's own is not said there."""
    return _ADDRESS.sub(HIDDEN, _NEAREST.sub("", text.replace(MEMCHECK_TELLS_MORE, "")))


def _field(name: str, value: Any) -> Any:
    if name not in SAID:
        return plain(value)
    if isinstance(value, str):
        return _said(value)
    return [_said(str(each)) for each in value]


def _said(text: str) -> str:
    return without_addresses(without_paths(text[:LONGEST_MESSAGE]))


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """As msgpack of any language has it: text, numbers, bytes, lists, maps of text."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return _text(value[:LONGEST_MESSAGE])
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
