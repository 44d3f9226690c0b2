"""`kaas.call`: run a kTask over KaaS's own connection, which takes a fraction of the time of Ray's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kaas.api.attached import current_session
from kaas.api.function import Function, call_function, caller_of, signature_of
from kaas.errors import InvalidRequest
from kaas.futures import Future
from kaas.ktask.graph import KTask
from kaas.ktask.request import RETRIES
from kaas.wire.packing import pack


def call(
    task_or_function: KTask | Function,
    inputs: Mapping[str, Any],
    *,
    scalars: Mapping[str, Any] | None = None,
    client: str | None = None,
    deadline_s: float | None = None,
    retries: int = RETRIES,
    profile: bool = False,
) -> Future:
    """Run a kTask, without waiting for it and without Ray: the reply comes straight to this process.

    Use `kaas.invoke` for an ObjectRef, to compose with Ray tasks, and this function for the value.

    Args:
        task_or_function: a kTask, or a registered function.
        inputs: by buffer name, as of `kaas.invoke`. Values may be written to again as soon as this returns.
            The first call that names a reference of a pool on Ray sends one message by Ray before.
        scalars: as of `kaas.invoke`.
        client: as of `kaas.invoke`.
        deadline_s: as of `kaas.invoke`.
        retries: as of `kaas.invoke`.
        profile: as of `kaas.invoke`.

    Returns:
        A `kaas.Future`: `result()` and `await` give the output's array, read-only; for several outputs a named tuple of
        them, in declared order. The future is for this process only.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: here, for errors that can be seen here. All other errors come
            through the future, as the KaasError that they are.
    """
    session = current_session()
    if isinstance(task_or_function, Function):
        function = task_or_function
        if (scalars, client, deadline_s, retries, profile) != _DEFAULTS:
            function = function.options(
                client=client,
                deadline_s=deadline_s,
                scalars=scalars,
                retries=None if retries == RETRIES else retries,
                profile=profile or None,
            )
        return call_function(function, session, inputs)
    caller = caller_of(session, client, deadline_s, retries, profile)
    if not isinstance(task_or_function, KTask):
        raise InvalidRequest(f"kaas.call takes a KTask or a Function, not {task_or_function!r}")
    session.check()
    calls = session.calls
    signature, attachments = signature_of(task_or_function), calls.attachments(session.store)
    with attachments:
        message, attached = pack(signature, inputs, scalars, caller, attachments)
        return calls.submit(signature, message, attached)


_DEFAULTS = (None, None, None, RETRIES, False)
