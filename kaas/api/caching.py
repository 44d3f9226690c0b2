"""Commands of a program to the devices' caches, which otherwise manage themselves.

The functions take a Function, and act on its constants, or an ObjectRef, without Ray a result of `put`. device is the
index of one of the pool's devices; None stands for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaas.api.attached import current_session
from kaas.api.function import Function, signatures_and_constants
from kaas.api.session import Session
from kaas.errors import InvalidRequest
from kaas.executor.device.host_arrays import on_host
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import raw_bytes
from kaas.wire import specs
from kaas.wire.packing import FunctionSignature


def put(value: Any) -> Any:
    """Put an object where devices cache it for many requests, and return its ObjectRef.

    Without Ray the pool itself holds the object for as long as the program refers to the returned value; objects of
    equal content are stored once.

    Args:
        value: an array without gaps, NumPy's or one of any library that knows DLPack (arrays on a GPU are copied to
            the host), or anything with the buffer protocol.

    Raises:
        NotInitialized, PoolStopped, NotContiguous
    """
    session = current_session()
    kept = on_host("value", value)
    raw_bytes(Buffer("value", 1), kept)
    return session.store.put(kept)


def prefetch(target: Any, device: int | None = None) -> Any:
    """Bring an object to the device, or get a function ready there: code loaded, constants in the cache.

    Returns:
        At once, an ObjectRef; ray.get on it waits until all is loaded. Without Ray a kaas.Future.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: here; through the ObjectRef RequestTooLarge, OutOfDeviceMemory,
            InputFailed, DeviceUnavailable, and errors of the function's code.
    """
    session = current_session()
    return session.prefetch(*_message(session, "prefetch", target, device))


def pin(target: Any, device: int | None = None) -> None:
    """Load as `prefetch` does, wait for it, and keep it on the device until `unpin`.

    If the executor there is replaced, the new one loads the object again, as long as the object exists. If the pool's
    process is replaced, this program tells the new one, unless the program has ended.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: as `prefetch`; and here the errors that `prefetch` raises through
            its ObjectRef.
    """
    session = current_session()
    message = _message(session, "pin", target, device)
    session.cache_command(*message)
    session.pins[_name(target), device] = message


def unpin(target: Any = None, device: int | None = None) -> None:
    """Release an object, a function's constants, or (None) everything that `pin` holds.

    The objects stay cached as long as there is room. Objects that are not pinned do not change.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest, DeviceUnavailable
    """
    session = current_session()
    session.cache_command(*_message(session, "unpin", target, device))
    for pinned in list(session.pins):
        if (target is None or pinned[0] == _name(target)) and device in (None, pinned[1]):
            del session.pins[pinned]


def flush(target: Any = None, device: int | None = None) -> None:
    """Forget an object, a function's constants, or (None) everything that is cached, but for pinned objects.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest, DeviceUnavailable
    """
    session = current_session()
    session.cache_command(*_message(session, "flush", target, device))


def _name(target: Any) -> bytes:
    """Return the name of a pin in the session."""
    if not isinstance(target, Function):
        name: bytes = target.binary()
        return name
    signatures, refs = signatures_and_constants(target)
    return refs[0].binary() if _bound(signatures) else "".join(signature.key for signature in signatures).encode()


def _bound(signatures: Sequence[FunctionSignature]) -> bool:
    """Return True if the function has constants."""
    return any(signature.spec.bindings for signature in signatures)


def _message(session: Session, action: str, target: Any, device: int | None) -> tuple[bytes, list[Any]]:
    if device is not None and type(device) is not int:  # nor a boolean
        raise InvalidRequest(f"a device is a number, not {device!r}")
    session.check()
    functions: tuple[str, ...] = ()
    refs: list[Any] = []
    objects = False
    client = session.client
    if isinstance(target, Function):
        signatures, refs = signatures_and_constants(target)
        client = target.client or client
        for signature in signatures:
            session.introduce(signature)
        functions, objects = tuple(signature.key for signature in signatures), _bound(signatures)
    elif session.store.is_ref(target):
        refs, objects = [target], True
    elif target is not None or action not in ("unpin", "flush"):
        raise InvalidRequest(f"kaas.{action} takes a Function, an ObjectRef or what kaas.put gives, not {target!r}")
    ready = action in ("unpin", "flush") or not refs or session.store.complete(refs)
    return specs.encode(specs.CacheCommandSpec(action, device, functions, objects, ready, client)), refs
