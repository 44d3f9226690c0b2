"""`kaas.register`: a kTask, or the variants of a model, becomes a Function with its constants bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kaas.api.attached import current_session
from kaas.api.function import BoundConstants, Function, known_to_the_pool
from kaas.api.session import Session
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.ktask.variant import Variant
from kaas.share import LEAST_SLO_S, ProfilePoint, Share
from kaas.wire.packing import FunctionSignature, bind, bind_variants
from kaas.wire.specs import ShareSpec, encode

AUTO = "auto"
"""A share that the pool chooses."""


def register(
    task: KTask,
    constants: Mapping[str, Any] | None = None,
    *,
    share: Share | Literal["auto"] | None = None,
    slo_s: float | None = None,
    best_effort: bool = True,
) -> Function:
    """Return a function: a kTask with some inputs bound once, for instance to weights.

    Args:
        task: the kTask.
        constants: by buffer name, as the inputs of `invoke`. Arrays go into Ray's store here. The Function holds them;
            executors cache them under the identity of these objects, so clients that share a Function share a copy.
        share: the part of each device that its requests may have; None: what shares leave. `set_share` changes it.
            "auto": the pool chooses parts and devices, and changes them with the load, so that requests end in slo_s.
        slo_s: seconds from the arrival of a request at the pool to its end, as the 99th percentile.
        best_effort: a request that would end later runs all the same, on what shares leave; otherwise it is refused.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
        InvalidShare: as of `set_share`.
    """
    session = current_session()
    if not isinstance(task, KTask):
        raise InvalidRequest(f"kaas.register takes a KTask, not {task!r}")
    _check_share(share, slo_s)
    signature, objects = bind(task, constants, session.store)
    function = _registered(session, task.label, (signature,), objects)
    if share is not None:
        set_share(function, share, slo_s=slo_s, best_effort=best_effort)
    return function


def set_share(
    function_or_client: Function | str,
    share: Share | Literal["auto"] | None,
    *,
    slo_s: float | None = None,
    best_effort: bool = True,
) -> None:
    """Give a function or a client a part of each device, from its next request on. No process starts, no code reloads.

    Requests that wait keep what they had. A function's share comes before its client's. A share ends with the last
    program that gave it. Each program of a pool may change those of the others, and none changes a share of the pool's
    configuration.

    Args:
        function_or_client: a registered function, or the name of a client.
        share: the part; None takes it away. "auto", for a function: as of `register`.
        slo_s: as of `register`.
        best_effort: as of `register`.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
        InvalidShare: the leasts of all shares do not fit a device together; the error says whose they are. Or the
            pool's configuration has the client's share. Or no share keeps slo_s by the function's profile; the error
            says what its best is.
    """
    session = current_session()
    _check_share(share, slo_s)
    given = (share.sms, *share.quota, share.memory_bytes) if isinstance(share, Share) else None
    promise = (slo_s, best_effort)
    if isinstance(function_or_client, Function):
        label, keys = known_to_the_pool(function_or_client)
        spec = ShareSpec(keys, "", label, given, *promise)
    elif isinstance(function_or_client, str) and function_or_client:
        spec = ShareSpec((), function_or_client, "", given, *promise)
    else:
        raise InvalidRequest(f"a Function or the name of a client has a share, not {function_or_client!r}")
    session.set_share(f"share of {spec.functions or spec.client}", encode(spec))


def _check_share(share: object, slo_s: object) -> None:
    """Check that a share is one, and that it has a latency if it follows from one.

    Raises:
        InvalidRequest
    """
    if not (share is None or share == AUTO or isinstance(share, Share)):
        raise InvalidRequest(f'a share is a kaas.Share, "auto" or None, not {share!r}')
    if (share == AUTO) is not (slo_s is not None):
        raise InvalidRequest(f'share="auto" and slo_s go together, not share={share!r} with slo_s={slo_s!r}')
    if slo_s is not None and not (
        isinstance(slo_s, int | float) and slo_s is not True and LEAST_SLO_S <= slo_s < math.inf
    ):
        raise InvalidRequest(f"slo_s is a number of seconds from {LEAST_SLO_S:g} on, not {slo_s!r}")


def tell_profile(function: Function, points: Sequence[ProfilePoint]) -> None:
    """Tell the pool what a function that has run there does with shares, as this program has measured it.

    Raises:
        NotInitialized, PoolStopped
    """
    label, keys = known_to_the_pool(function)
    message = encode(ShareSpec(keys, "", label, None, points=tuple(points)))
    current_session().set_share(f"profile of {keys}", message)


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
