"""`kaas.register`: a kTask, or the variants of a model, becomes a Function with its constants bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kaas.api.attached import current_session
from kaas.api.function import BoundConstants, Function
from kaas.api.session import Session
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.ktask.variant import Variant
from kaas.wire.packing import FunctionSignature, bind, bind_variants


def register(task: KTask, constants: Mapping[str, Any] | None = None) -> Function:
    """Return a function: a kTask with some inputs bound once, for instance to weights.

    Args:
        task: the kTask.
        constants: by buffer name, as the inputs of `invoke`. Arrays go into Ray's store here. The Function holds them;
            executors cache them under the identity of these objects, so clients that share a Function share a copy.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
    """
    session = current_session()
    if not isinstance(task, KTask):
        raise InvalidRequest(f"kaas.register takes a KTask, not {task!r}")
    signature, objects = bind(task, constants, session.store)
    return _registered(session, task.label, (signature,), objects)


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
