"""`kaas.register`: a kTask, or the variants of a model, becomes a Function with its constants bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kaas.api.attached import current_session
from kaas.api.function import BoundConstants, Function, known_to_the_pool
from kaas.api.session import Session
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.ktask.variant import Variant
from kaas.share import Share
from kaas.wire.packing import FunctionSignature, bind, bind_variants
from kaas.wire.specs import ShareSpec, encode


def register(task: KTask, constants: Mapping[str, Any] | None = None, *, share: Share | None = None) -> Function:
    """Return a function: a kTask with some inputs bound once, for instance to weights.

    Args:
        task: the kTask.
        constants: by buffer name, as the inputs of `invoke`. Arrays go into Ray's store here. The Function holds them;
            executors cache them under the identity of these objects, so clients that share a Function share a copy.
        share: the part of each device that its requests may have; None: what shares leave. `set_share` changes it.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
        InvalidShare: as of `set_share`.
    """
    session = current_session()
    if not isinstance(task, KTask):
        raise InvalidRequest(f"kaas.register takes a KTask, not {task!r}")
    signature, objects = bind(task, constants, session.store)
    function = _registered(session, task.label, (signature,), objects)
    if share is not None:
        set_share(function, share)
    return function


def set_share(function_or_client: Function | str, share: Share | None) -> None:
    """Give a function or a client a part of each device, from its next request on. No process starts, no code reloads.

    A function's share comes before its client's. Shares that a program gives end with the program.

    Args:
        function_or_client: a registered function, or the name of a client.
        share: the part; None takes it away.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
        InvalidShare: the leasts of all shares do not fit a device together; the error says whose they are.
    """
    session = current_session()
    if not isinstance(share, Share | None):
        raise InvalidRequest(f"a share is a kaas.Share, not {share!r}")
    given = None if share is None else (share.sms, *share.quota)
    if isinstance(function_or_client, Function):
        label, keys = known_to_the_pool(function_or_client)
        spec = ShareSpec(keys, "", label, given)
    elif isinstance(function_or_client, str) and function_or_client:
        spec = ShareSpec((), function_or_client, "", given)
    else:
        raise InvalidRequest(f"a Function or the name of a client has a share, not {function_or_client!r}")
    session.set_share(f"share of {spec.functions or spec.client}", encode(spec))


def register_variants(name: str, variants: Sequence[Variant], constants: Mapping[str, Any]) -> Function:
    """Return a function of a model: several kTasks for inputs of different shapes, which share constants.

    Args:
        name: of the model, for people.
        variants: all with inputs of the same names.
        constants: by buffer name, exactly those that the variants read, as of `register`.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
    """
    session = current_session()
    signatures, objects = bind_variants(variants, constants, session.store)
    return _registered(session, name, signatures, objects)


def _registered(
    session: Session, name: str, signatures: tuple[FunctionSignature, ...], objects: tuple[Any, ...]
) -> Function:
    store = session.store
    refs = tuple(value for value in objects if store.is_ref(value))
    function = Function(
        session.name, name, signatures, BoundConstants(store.put_all(objects) if objects else None, refs)
    )
    for signature in signatures:
        session.introduce(signature)
    return function
