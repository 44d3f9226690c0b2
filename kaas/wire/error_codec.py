"""Errors as bytes on sockets, without pickle: a reader imports and runs nothing to decode them.

Only a cause that is no KaasError stays pickled bytes, until a reader that trusts its origin opens it.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from kaas.errors import KaasError, declared, opened, sealed_cause

CAUSES_AT_MOST = 16
"""Errors of a chain, each the cause of the error before it; deeper causes are left out."""
DEPTH_AT_MOST = 32
"""Depth of lists, tuples and dicts in a field; a deeper value becomes its repr, as do such keys."""

_TUPLE = 1
_PLAIN = (type(None), bool, int, float, str, bytes)


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """classes: the error's and those above it, as (module, name). cause: a KaasError, or a sealed foreign error."""

    classes: list[tuple[str, str]]
    message: str
    fields: dict[str, Any]
    cause: _Encoded | bytes | None


def encode_error(error: KaasError) -> bytes:
    """Return an error's class, message, fields and causes as bytes. Values that msgpack cannot hold become reprs."""
    return msgspec.msgpack.encode(_encoded(error, CAUSES_AT_MOST))


def decode_error(data: bytes | memoryview, *, open_cause: bool = True) -> KaasError:
    """Return the error, of the first of its classes that is known here: a class of a module that is imported already.

    open_cause: unpickle a foreign cause. If False, the cause stays sealed in the error.
    """
    try:
        return _decoded(_decoder.decode(data), open_cause)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return KaasError(f"an error that cannot be read ({error})")


def _encoded(error: KaasError, causes: int) -> _Encoded:
    cls = type(error)
    fields = {name: _carried(value) for name, value in error.fields.items()}
    cause: _Encoded | bytes | None = None
    if causes:
        above = error.__cause__
        cause = _encoded(above, causes - 1) if isinstance(above, KaasError) else sealed_cause(error)
    classes = [(base.__module__, base.__qualname__) for base in cls.__mro__ if issubclass(base, KaasError)]
    return _Encoded(classes, as_text(error.message), fields, cause)


def _carried(value: Any, depth: int = DEPTH_AT_MOST) -> Any:
    match value:
        case tuple() if depth:
            return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode([_carried(item, depth - 1) for item in value]))
        case list() if depth:
            return [_carried(item, depth - 1) for item in value]
        case dict() if depth:
            return {_carried(key, 0): _carried(item, depth - 1) for key, item in value.items()}
        case str():
            return as_text(value)
        case int() if not -(2**63) <= value < 2**64:
            return _shown(value)
    return value if type(value) in _PLAIN else as_text(_shown(value))


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign class may raise anything
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def as_text(text: str) -> str:
    """Return the text as UTF-8 can carry it: a file's name may hold bytes that are no text."""
    return text.encode(errors="backslashreplace").decode()


def _decoded(encoded: _Encoded, open_cause: bool) -> KaasError:
    error = _made(encoded)
    if isinstance(encoded.cause, _Encoded):
        error.__cause__ = _decoded(encoded.cause, open_cause)
    elif encoded.cause is not None:
        error.seal_cause(encoded.cause)
    return opened(error) if open_cause else error


def _made(encoded: _Encoded) -> KaasError:
    for module, name in encoded.classes:
        cls = _known(module, name)
        if cls is not None:
            known = {field: value for field, value in encoded.fields.items() if field in declared(cls)}
            try:
                return cls(encoded.message, **known)
            except Exception:  # noqa: BLE001 - a foreign class, with a constructor of its own
                continue
    return KaasError(encoded.message)


def _known(module: str, name: str) -> type[KaasError] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, KaasError) else None


def _extension(code: int, data: memoryview) -> Any:
    if code != _TUPLE:
        raise msgspec.DecodeError(f"it holds something of an unknown kind, {code}")
    return tuple(msgspec.msgpack.decode(data, type=list[Any], ext_hook=_extension))


_decoder = msgspec.msgpack.Decoder(_Encoded, ext_hook=_extension)
