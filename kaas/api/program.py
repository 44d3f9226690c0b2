"""The functions of a user's program: start a pool on Ray or attach to one, query it, invoke kTasks and functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kaas.api.attached import current_session
from kaas.api.function import (
    Function,
    Options,
    invoke_function,
    signature_of,
    signatures_and_constants,
)
from kaas.api.session import HERE, refuse_second_pool
from kaas.config import Config, Device
from kaas.errors import InvalidConfig, InvalidRequest
from kaas.executor.device import software
from kaas.ktask.graph import KTask
from kaas.ktask.request import RETRIES
from kaas.optional_ray import check_ray
from kaas.profiles import with_profiles
from kaas.scheduling import policies
from kaas.wire.packing import pack
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status

# --- the pool


def init(
    address: str | None = None,
    *,
    ray: bool = True,
    config: Config | None = None,
    devices: Sequence[Device] | None = None,
    policy: str | Callable[..., Any] | None = None,
    record: str | None = None,
    name: str = "kaas",
) -> bool:
    """Attach this process to the pool of this name, or start it. A second call changes nothing.

    Ray is started or connected to if the program has not done so. Without Ray (`ray=False`) the pool is a plain
    process, with one for each device of this machine, and ends with the program that started it; other programs of the
    same user attach to it by its name. There `kaas.call` runs kTasks; `kaas.invoke`, eTasks and outputs that stay on a
    device (`keep`) need Ray.

    Args:
        address: of a Ray cluster, as for ray.init; None: the running one, else a new one on this machine.
        ray: False for a pool without Ray.
        config: None takes a running pool as it is, or the defaults. A pool with another configuration refuses.
        devices: short for Config(devices=...). Default: the GPUs that Ray finds, or that this machine has; else two
            software GPUs.
        policy: short for Config(policy=...).
        record: short for Config(record=...).
        name: of the pool.

    Returns:
        True if this call started the pool. The program that started the pool shuts it down; others just leave.

    Raises:
        ConfigMismatch, InvalidConfig
        MissingPackage: Ray is not installed.
        PoolStopped: a pool of this name runs without Ray, and does not reply.
    """
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"a pool has a name, not {name!r}", field="name")
    if address is not None and not ray:
        raise InvalidConfig(f"a pool without Ray is on this machine, not at {address!r}", field="address")
    if config is not None and not isinstance(config, Config):
        raise InvalidConfig(f"config is a kaas.Config, not {config!r}", field="config")
    given = {"devices": devices, "policy": policy, "record": record}
    named: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    wanted = replace(config or Config(), **named) if named else config
    if wanted is not None and wanted.record is not None:
        wanted = replace(wanted, record=os.path.abspath(wanted.record))  # the pool runs in another folder
    if wanted is not None:
        wanted = with_profiles(wanted)
    policies.factory((wanted or Config()).policy)
    for device in (wanted and wanted.devices) or ():
        software.check(device)
    with HERE.lock:
        if HERE.session is not None and not HERE.session.alive():
            HERE.session = None
        refuse_second_pool(name, ray=ray)
        if ray:
            check_ray()
            from kaas.api import ray_session

            HERE.session, opened = ray_session.open_session(name, wanted, address)
        else:
            from kaas.api import process_session

            HERE.session, opened = process_session.open_session(name, wanted)
    return opened


def shutdown() -> None:
    """Stop the pool, for all programs that use it, and Ray if `init` started it.

    Waiting requests end with PoolStopped. A pool of `kaas serve` goes on: this process leaves it. Nothing happens
    without a pool. A process that only wants to leave just ends; `init` says whether it started the pool.
    """
    with HERE.lock:
        session, HERE.session = HERE.session, None
        if session is not None and session.alive():
            session.shut_down()


def status() -> Status:
    """Return the pool's devices, executors, queue and functions at this moment.

    Raises:
        NotInitialized
        PoolStopped: the pool is gone; `init` starts another.
    """
    return current_session().status()


def stats(reset: bool = False) -> Stats:
    """Return the times of requests and the figures of the caches, since the start or the last reset.

    Raises:
        NotInitialized
        PoolStopped: the pool is gone; `init` starts another.
    """
    return current_session().stats(reset)


def pardon(task_or_function: KTask | Function) -> bool:
    """Let a function that is in quarantine run again, and forget that it ended devices.

    Returns:
        True if it was in quarantine.

    Raises:
        NotInitialized, InvalidRequest
        PoolStopped: the pool is gone; `init` starts another.
    """
    function = task_or_function
    if not isinstance(function, Function | KTask):
        raise InvalidRequest(f"kaas.pardon takes a KTask or a Function, not {function!r}")
    signatures = signatures_and_constants(function)[0] if isinstance(function, Function) else (signature_of(function),)
    session = current_session()
    pardoned = [session.pardon(signature.key) for signature in signatures]
    return any(pardoned)


def attach(name: str = "kaas", *, address: str = "auto", ray: bool = True) -> None:
    """Attach this process to a pool that runs already; unlike `init` this starts nothing.

    Raises:
        NotInitialized: no Ray at that address, or no pool of that name on it, or on this machine.
        ConfigMismatch: the process is attached to another pool.
        MissingPackage: Ray is not installed.
    """
    refuse_second_pool(name, ray=ray)
    if ray:
        check_ray()
        from kaas.api import ray_session

        ray_session.attach(name, address)
    else:
        from kaas.api import process_session

        process_session.attach(name)


# --- invocations


def invoke(
    task_or_function: KTask | Function,
    inputs: Mapping[str, Any],
    *,
    scalars: Mapping[str, Any] | None = None,
    client: str | None = None,
    deadline_s: float | None = None,
    retries: int = RETRIES,
    profile: bool = False,
    keep: bool | Sequence[str] | None = None,
) -> Any:
    """Run a kTask, without waiting for it.

    Args:
        task_or_function: a kTask, or a registered function.
        inputs: by buffer name: ObjectRefs, arrays, anything with the buffer protocol, or Views of these. Exactly the
            buffer's bytes and dtype, but a "uint8" buffer takes any dtype. References need not be complete yet. Arrays
            may be of any library that knows DLPack; arrays on a GPU are copied to the host here.
        scalars: a value for each of the kTask's Scalars.
        client: the party that the request is billed to; default: the client of a Function's options, else this
            program: its script and Ray job.
        deadline_s: seconds from now within which the request must have ended.
        retries: how often the request may run again when its executor dies; the default leaves a Function its own.
        profile: run the kernels one by one, without the graph, and add what each takes to `kaas.stats().kernels`. False
            leaves a Function its own.
        keep: True, or names of outputs, that stay on the device for a kTask that reads them next; default: as a
            Function's options say, else none. They come to the host only when a program asks, or when they must leave.

    Returns:
        An ObjectRef of the output's array; for several outputs a named tuple of them, in declared order. It serves
        ray.get, ray.wait, await, ray.cancel and as an argument of Ray tasks and kTasks. Of an output that is kept the
        value is a `kaas.Resident`, which NumPy's functions take and whose `get()` is the array; it is the array itself
        if all outputs together have no more than 100 KB.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: here, for errors that can be seen here. All other errors come, as a
            KaasError, through the ObjectRef: ray.get raises an error of the same class, with its fields and the error
            itself as `cause`.
    """
    session = current_session()
    if isinstance(task_or_function, Function):
        changed = None if retries == RETRIES else retries
        function = task_or_function.options(
            client=client,
            deadline_s=deadline_s,
            scalars=scalars,
            retries=changed,
            profile=profile or None,
            keep=keep,
        )
        return invoke_function(function, session, inputs)
    options = Options(client, deadline_s, scalars, retries, profile, keep or False)
    if not isinstance(task_or_function, KTask):
        raise InvalidRequest(f"kaas.invoke takes a KTask or a Function, not {task_or_function!r}")
    signature = signature_of(task_or_function)
    message, refs = pack(signature, inputs, scalars, options.caller(session), session.store)
    return session.send(signature, message, refs)
