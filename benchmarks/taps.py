"""The steps of a request: notes in every process on its path, by functions that are wrapped meanwhile.

All processes are on one machine and read the same monotonic clock. Requests go one at a time, so that in each process
the notes of one kind are in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from itertools import pairwise
from time import monotonic
from typing import Any

import numpy as np
import ray

from kaas.api.attached import current_session
from kaas.api.ray_session import RaySession
from kaas.executor.executor import Executor
from kaas.pool.on_ray.cluster import NAMESPACE
from kaas.pool.service import Service
from kaas.wire import messages

Notes = dict[str, list[float]]
"""The notes of one process: the times of each kind of moment."""

NOTES: Notes = {}
PUT_BACK: list[Callable[[], None]] = []

TO_EXECUTOR = {
    "pool, RunInvocation": "pool: the policy's decision, the function announced, a message",
    "executor, got RunInvocation": "to the executor",
    "executor, begins": "executor: inputs found",
    "executor, ends": "executor: copies, kernel, copies",
    "executor, ExecutorReply": "executor: measurements, a message",
    "pool, got ExecutorReply": "back to the pool",
}
STEPS: Mapping[str, Mapping[str, str]] = {
    "call": {
        "driver, Submit": "driver: checks, a message",
        "pool, got Submit": "to the pool",
        **TO_EXECUTOR,
        "pool, CallResult": "pool: the slot is free, a message",
        "driver, got CallResult": "to the driver",
        "driver, ends": "driver: an array",
    },
    "invoke": {
        "pool, asked": "driver: checks; Ray's call; over to the pool's thread",
        **TO_EXECUTOR,
        "driver, ends": "pool: the slot is free; back to Ray's loop; Ray's reply; driver: an array",
    },
}
"""The moments of each path, in order, with the step since the moment before."""


def steps(way: str, call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return the median seconds of each step of a path, and of the whole; `call` sends a request and waits."""
    session = current_session()
    assert isinstance(session, RaySession), "Ray lets a function run in the processes of its actors"
    pool, executor = session.pool, _executor(session.name)
    ask: dict[str, Callable[..., Any]] = {
        "driver": lambda function: function(None),
        "pool": lambda function: ray.get(pool.__ray_call__.remote(function)),
        "executor": lambda function: ray.get(executor.__ray_call__.remote(function)),
    }
    for process in ask.values():
        process(_install)
    began, ended = np.empty(rounds), np.empty(rounds)
    for number in range(rounds):
        began[number] = monotonic()
        call()
        ended[number] = monotonic()
    notes = {
        f"{name}, {kind}": np.array(times[-rounds:])
        for name, process in ask.items()
        for kind, times in process(_remove).items()
    } | {"driver, ends": ended}
    moments = [began, *(notes[moment] for moment in STEPS[way])]
    took = [float(np.median(after - before)) for before, after in pairwise(moments)]
    return dict(zip(STEPS[way].values(), took, strict=True)) | {"in all": float(np.median(ended - began))}


def _executor(pool: str) -> Any:
    """Return the handle of a pool's only executor."""
    actors: Iterable[Mapping[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    prefix = f"{pool}/worker/"
    (name,) = [one["name"] for one in actors if one["namespace"] == NAMESPACE and one["name"].startswith(prefix)]
    return ray.get_actor(name, namespace=NAMESPACE)


def _install(_: Any) -> None:
    """Begin to take notes in this process."""
    _wrap(messages, "encode", lambda header: type(header).__name__, None)
    for decode in ("decode_from_peer", "decode_to_peer"):
        _wrap(messages, decode, None, lambda header: f"got {type(header).__name__}")
    _wrap(Executor, "run", lambda *_: "begins", lambda _: "ends")
    _wrap(Service, "invoke", lambda *_: "asked", None)


def _remove(_: Any) -> Notes:
    """End taking notes in this process, and return them."""
    for put_back in PUT_BACK:
        put_back()
    PUT_BACK.clear()
    notes = dict(NOTES)
    NOTES.clear()
    return notes


def _wrap(owner: Any, name: str, before: Callable[..., str] | None, after: Callable[[Any], str] | None) -> None:
    """Wrap a function so that it takes notes.

    `before` names the note of a call from its arguments, `after` the note of a result. For decoded messages only the
    result shows the kind.
    """
    function = getattr(owner, name)

    @wraps(function, assigned=())
    def noted(*args: Any, **named: Any) -> Any:
        now = monotonic()
        if before is not None:
            NOTES.setdefault(before(*args), []).append(now)
        result = function(*args, **named)
        if after is not None:
            NOTES.setdefault(after(result), []).append(monotonic())
        return result

    setattr(owner, name, noted)
    PUT_BACK.append(partial(setattr, owner, name, function))
