"""Errors in replies to remote clients: by name, with plain fields, without causes and paths of the server."""

from __future__ import annotations

import re
from typing import Any

from kaas import errors
from kaas.errors import (
    MEMCHECK_ELSEWHERE,
    MEMCHECK_TELLS_MORE,
    CodeUnavailable,
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
    StateUnavailable,
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
    CodeUnavailable,
    DeviceUnavailable,
    ETaskFailed,
    ExecutorDied,
    InputFailed,
    InvalidCode,
    PolicyError,
    Quarantined,
    ResultLost,
    StateUnavailable,
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
_OUTSIDE = re.compile(
    r"0x[0-9a-fA-F]+, \d+ bytes (?:before|(?:of them )?behind the end of) the nearest buffer(?: \([^()]*\))?"
)
_NEAREST = re.compile(r",? ?\d+ bytes [a-z ]{1,40}the nearest buffer(?: \([^()]*\))?")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PROCESS = re.compile(r" \(pid \d+\)")
DEEPEST = 8
"""How deep lists and maps in a field may nest."""
MESSAGE_BYTES, FIELDS_BYTES = 12 << 10, 18 << 10
"""The most bytes of a failure's message, and of all its fields together, which have room for `errors.PRINTED_BYTES`. An
error repeats names that a client has chosen, of any length, and takes no credit."""
LONGEST_TEXT = 16 << 10
"""The most bytes of a text in a field."""
ITEM_BYTES = 9
"""Of a number, or of the length of a text, a list or a map, at most."""


def failure_of(number: int, error: BaseException) -> Failure:
    """Return the reply for an error. Foreign errors but OSError count as InvalidRequest: only messages cause them."""
    if isinstance(error, OSError) and not isinstance(error, KaasError):
        error = KaasError(f"the server cannot do it: {error.strerror or type(error).__name__}")
    elif not isinstance(error, KaasError):
        error = InvalidRequest(f"the server cannot handle a message: {type(error).__name__}: {error}")
    known = next(base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base)
    fields = {name: _field(name, value) for name, value in error.fields.items() if name not in HIDDEN_FIELDS}
    retry_s = fields.get("retry_s", RETRY_S.get(known))
    return Failure(number, known.__name__, message_of(error), _Room(FIELDS_BYTES).cut(fields), retry_s)


def message_of(error: KaasError) -> str:
    """Return the message of an error, without paths and addresses of the server."""
    message = error.message[:MESSAGE_BYTES]  # before the search: a client may cause it by a step
    if type(error) is KaasError or isinstance(error, FOREIGN_ERRORS):
        message = without_paths(message)
    return cut(as_text(without_addresses(message) if isinstance(error, OF_DEVICES) else message), MESSAGE_BYTES)


def cut(text: str, nbytes: int) -> str:
    """Return a text's beginning, whose UTF-8 has at most so many bytes."""
    whole = text.encode()
    return text if len(whole) <= nbytes else whole[:nbytes].decode(errors="ignore")


class _Room:
    """Room for the bytes of fields, which cutting uses up."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def cut(self, value: Any) -> Any:
        """Return a plain value as far as there is room for it: texts and bytes are cut, lists and maps end earlier. A
        text in a list is whole or left out, since a part of a name or of a hash is another one."""
        self._left -= ITEM_BYTES
        match value:
            case str() | bytes():
                most = max(0, self._left)
                value = cut(value, most) if isinstance(value, str) else value[:most]
                self._left -= len(value.encode() if isinstance(value, str) else value)
            case list():
                return [self.cut(item) for item in value if self._has_room(item)]
            case dict():
                return {self.cut(key): self.cut(item) for key, item in value.items() if self._has_room(key)}
        return value

    def _has_room(self, item: Any) -> bool:
        nbytes = len(item.encode() if isinstance(item, str) else item) if isinstance(item, str | bytes) else 0
        return nbytes + ITEM_BYTES <= self._left


def without_paths(text: str) -> str:
    """Return a text with all paths hidden."""
    return as_text(_PATH.sub(rf"\g<option>{HIDDEN}", text) if "/" in text else text)


def without_addresses(text: str) -> str:
    """Return a device's message without processes, addresses and neighboring buffers, perhaps of another client."""
    text = _OUTSIDE.sub("memory outside its buffers", text.replace(MEMCHECK_TELLS_MORE, MEMCHECK_ELSEWHERE))
    return _ADDRESS.sub(HIDDEN, _NEAREST.sub("", _PROCESS.sub("", text)))


def _field(name: str, value: Any) -> Any:
    if name not in FOREIGN_FIELDS:
        return plain(value)
    if isinstance(value, list | tuple):
        return [foreign_text(str(each)) for each in value]
    return foreign_text(str(value))  # also of another type, which code in an executor may have sent


def foreign_text(text: str) -> str:
    """Return a text of the system, of a compiler or of a driver without paths and addresses."""
    return without_addresses(without_paths(text[:LONGEST_TEXT]))


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """Return a value as plain msgpack: text, numbers, bytes, lists, maps of text."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return cut(as_text(value[:LONGEST_TEXT]), LONGEST_TEXT)
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case tuple() | list() if depth:
            return [plain(item, depth - 1) for item in value]
        case dict() if depth:
            return {as_text(str(key)): plain(item, depth - 1) for key, item in value.items()}
        case _:
            return as_text(repr(value))
