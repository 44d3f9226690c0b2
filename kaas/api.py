"""What a user's program calls: attach to a pool on Ray, register functions, invoke them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ray

from kaas.arguments import Buffer
from kaas.config import Config, Device
from kaas.errors import (
    ConfigMismatch,
    InvalidConfig,
    InvalidRequest,
    KaasError,
    NotInitialized,
    PolicyError,
    PoolStopped,
)
from kaas.executor import software
from kaas.graph import KTask
from kaas.pool import policies, wire
from kaas.pool.packing import Caller, Signature, bind, bind_variants, choose_signature, pack
from kaas.pool.ray_pool import PoolActor
from kaas.pool.ray_transport import NAMESPACE, SOFTWARE_RESOURCE, cluster_resources
from kaas.pool.stats import Stats
from kaas.pool.status import Status
from kaas.session import STORE, Session
from kaas.variant import Variant, of_shapes

SOFTWARE_SLOTS = 16
"""Software GPUs that a Ray which `init` starts has room for, over all pools on it."""
CONCURRENT_REQUESTS = 100_000
POOL_OPTIONS: dict[str, Any] = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "get_if_exists": True,
    "num_cpus": 0,
    "max_concurrency": CONCURRENT_REQUESTS,
    "max_restarts": -1,
    "max_task_retries": -1,  # a kTask is pure, and what else is asked may be asked again
}
"""What Ray is told of a pool's actor."""
RETRIES = 3
MOST_RETRIES = 1 << 16
LONGEST_S = 1e9
"""Deadlines lie below this, about thirty years."""


_session: Session | None = None
_lock = threading.Lock()


def current_session() -> Session:
    """
    Raises:
        NotInitialized
    """
    session = _session
    if session is None or not ray.is_initialized():
        raise NotInitialized("call kaas.init() first")
    return session


def session_for(pool: str) -> Session:
    """This process's session; a Ray task that has none, or whose pool is gone, is attached to this pool.

    Raises:
        NotInitialized
    """
    session = _session
    if session is None or not ray.is_initialized() or (session.gone and _in_ray_worker()):
        return _attach_in_task(pool)
    return session


# --- the pool


def init(
    address: str | None = None,
    *,
    config: Config | None = None,
    devices: Sequence[Device] | None = None,
    policy: str | Callable[..., Any] | None = None,
    record: str | None = None,
    name: str = "kaas",
) -> bool:
    """Attach this process to the pool of this name, or start it. Once more changes nothing.

    Ray is started or connected to when the program has not done so.

    Args:
        address: of a Ray cluster, as for ray.init; None: the running one, else a new one on this machine.
        config: None takes what runs, or the defaults. A pool that runs with another configuration refuses.
        devices: short for Config(devices=...). Default: the GPUs that Ray finds, else two software GPUs.
        policy, record: short for Config(policy=...) and Config(record=...).

    Returns:
        Whether this call started the pool. Who did is the one to shut it down; who attached just leaves.

    Raises:
        ConfigMismatch, InvalidConfig
    """
    given = {"devices": devices, "policy": policy, "record": record}
    named: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    wanted = replace(config or Config(), **named) if named else config
    if wanted is not None and wanted.record is not None:
        wanted = replace(wanted, record=os.path.abspath(wanted.record))  # the pool runs in another folder
    policies.factory((wanted or Config()).policy)
    for device in (wanted and wanted.devices) or ():
        software.check(device)
    global _session
    with _lock:
        if _session is not None and not ray.is_initialized():
            _session = None
        _refuse_second_pool(name)
        started = _session.started_ray if _session else _connect(address, wanted)
        pool, opened = _open_pool(name, wanted)
        if _session is None or _session.pool != pool:
            client = ray.get_runtime_context().get_job_id()
            _session = Session(name, pool, client, started, pool.invoke).watch().attend()
    return opened


def _refuse_second_pool(name: str) -> None:
    if _session is not None and _session.name != name:
        raise ConfigMismatch(
            f"this process is attached to pool {_session.name!r}; call kaas.shutdown() before another",
            pool=_session.name,
            differences=("name",),
        )


def _connect(address: str | None, wanted: Config | None) -> bool:
    """Connect to Ray; whether that started one."""
    if ray.is_initialized():
        return False
    if address is not None:
        ray.init(address=address)
        return False
    software = sum(device.kind == "software" for device in (wanted and wanted.devices) or ())
    try:
        ray.init(resources={SOFTWARE_RESOURCE: max(SOFTWARE_SLOTS, software)})
    except ValueError:  # Ray has found a cluster to connect to, and says so before it connects
        ray.init()
        return False
    return True


def _open_pool(name: str, wanted: Config | None) -> tuple[Any, bool]:
    """The running pool of this name, or a new one and True; a pool that is just ending gives way to a new one."""
    gpus = int(cluster_resources().get("GPU", 0))
    actor: Any = ray.remote(PoolActor).options(name=name, **POOL_OPTIONS)
    refused = False
    while True:
        pool = actor.remote(name, (wanted or Config()).resolved(gpus))
        try:
            opened: bool = ray.get(pool.attach.remote(wanted))
        except ray.exceptions.RayActorError:
            if refused:
                raise
            refused = True
        except KaasError as error:
            if isinstance(error, PolicyError | InvalidConfig | PoolStopped):
                ray.kill(pool)  # it never opened, or never will again: its name is free for a better one
            if not isinstance(error, PoolStopped):
                raise _plain(error) from None
        else:
            return pool, opened


def _plain(error: KaasError) -> KaasError:
    """An error as it was raised, out of the class that Ray makes of it."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, KaasError) else error


def shutdown() -> None:
    """Stop the pool, for everyone attached to it, and Ray if `init` started it. Waiting requests end with PoolStopped.

    Nothing happens without a pool. A process that only wants to leave just ends; `init` says whether it started the
    pool.
    """
    global _session
    with _lock:
        session, _session = _session, None
        if session is None or not ray.is_initialized():
            return
        try:
            for _ in range(2):  # answers leave the actor in order: when the second is here, those of all who waited are
                ray.get(session.pool.stop.remote())
            ray.kill(session.pool)
        except ray.exceptions.RayActorError:
            pass  # somebody else stopped it first
        if session.started_ray:
            ray.shutdown()


def status() -> Status:
    """The pool's devices, executors, queue and functions at this moment.

    Raises:
        NotInitialized
        PoolStopped: the pool is gone; `init` starts another.
    """
    result: Status = answer_of(current_session(), "status")
    return result


def stats(reset: bool = False) -> Stats:
    """Where requests spent their time and what the caches did, since the start or the last reset.

    Raises:
        NotInitialized
        PoolStopped: the pool is gone; `init` starts another.
    """
    result: Stats = answer_of(current_session(), "stats", reset)
    return result


def pardon(task_or_function: KTask | Function) -> bool:
    """Let a function that is in quarantine run again, and forget that it ended devices.

    Returns:
        Whether it was in quarantine.

    Raises:
        NotInitialized
        PoolStopped: the pool is gone; `init` starts another.
    """
    function = task_or_function
    signatures = function.upkeep()[0] if isinstance(function, Function) else (_signature(function),)
    session = current_session()
    pardoned = [answer_of(session, "pardon", signature.key) for signature in signatures]
    return any(pardoned)


def answer_of(session: Session, method: str, *args: Any) -> Any:
    """What the pool's actor answers.

    Raises:
        PoolStopped, KaasError
    """
    try:
        return ray.get(getattr(session.pool, method).remote(*args))
    except ray.exceptions.RayActorError as error:
        raise PoolStopped(f"pool {session.name!r} is gone: {error}", pool=session.name) from error
    except KaasError as error:
        raise _plain(error) from None


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
        inputs: by buffer name: ObjectRefs, arrays, anything with the buffer protocol, or Views of these. Exactly the
            buffer's bytes and dtype, but a "uint8" buffer takes any dtype. References need not be complete yet. Arrays
            may be of any library that knows DLPack; what lies on a GPU is copied to the host here.
        scalars: a value for each of the kTask's Scalars.
        client: the tenant it is billed to; default: what a Function's options say, or this Ray job.
        deadline_s: seconds from now within which it must have ended.
        retries: how often it may run again when its executor dies; the default leaves a Function its own.
        profile: run the kernels one by one, without the graph, and add what each takes to `kaas.stats().kernels`. False
            leaves a Function its own.
        keep: whether the outputs, or which of them, stay on the device, for a kTask that reads them next; default: as a
            Function's options say, else none. They come to the host only when somebody asks, or when they must leave.

    Returns:
        An ObjectRef of the output's array; for several outputs a named tuple of them, in declared order. It serves
        ray.get, ray.wait, await, ray.cancel and as an argument of Ray tasks and kTasks. Of an output that is kept the
        value is a `kaas.Resident`, which NumPy's functions take and whose `get()` is the array; it is the array itself
        if all outputs together have no more than 100 KB.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: here, whatever is wrong and can be seen here. All else, as a
            KaasError, through the ObjectRef: what ray.get raises is of the error's class, with its fields and itself
            as `cause`.
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
        return function._send(session, inputs, function._options)
    options = Options(client, deadline_s, scalars, retries, profile, keep or False)
    if not isinstance(task_or_function, KTask):
        raise InvalidRequest(f"kaas.invoke takes a KTask or a Function, not {task_or_function!r}")
    signature = _signature(task_or_function)
    message, refs = pack(signature, inputs, scalars, options.caller(session), STORE)
    return session.send(signature, message, refs)


def register(task: KTask, constants: Mapping[str, Any] | None = None) -> Function:
    """A function: a kTask with some inputs bound once, for instance to weights.

    Args:
        constants: by buffer name, as the inputs of `invoke`. Arrays go into Ray's store here. The Function holds them;
            executors cache them under the identity of what was put here, so clients that share a Function share a copy.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
    """
    session = current_session()
    if not isinstance(task, KTask):
        raise InvalidRequest(f"kaas.register takes a KTask, not {task!r}")
    signature, objects = bind(task, constants, STORE)
    return _registered(session, task.label, (signature,), objects)


def register_variants(name: str, variants: Sequence[Variant], constants: Mapping[str, Any]) -> Function:
    """A function of a model: several kTasks for inputs of different shapes, which share constants.

    Args:
        variants: all with inputs of the same names. constants: by buffer name, exactly those that they read, as of
            `register`.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest
    """
    session = current_session()
    signatures, objects = bind_variants(variants, constants, STORE)
    return _registered(session, name, signatures, objects)


def _registered(session: Session, name: str, signatures: tuple[Signature, ...], objects: tuple[Any, ...]) -> Function:
    refs = tuple(value for value in objects if isinstance(value, ray.ObjectRef))
    function = Function(session.name, name, signatures, ray.put(objects) if objects else None, refs)
    for signature in signatures:
        session.introduce(signature)
    return function


@dataclass(frozen=True, slots=True)
class Options:
    """How a Function is invoked: see `invoke`.

    Raises:
        InvalidRequest
    """

    client: str | None = None
    deadline_s: float | None = None
    scalars: Mapping[str, Any] | None = None
    retries: int = RETRIES
    profile: bool = False
    keep: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        if not isinstance(self.client, str | None) or self.client == "":
            raise InvalidRequest(f"a client is a name, not {self.client!r}")
        if self.deadline_s is not None and not (
            isinstance(self.deadline_s, int | float) and 0 < self.deadline_s < LONGEST_S
        ):
            raise InvalidRequest(f"deadline_s is a positive number of seconds, not {self.deadline_s!r}")
        if not isinstance(self.retries, int) or not 0 <= self.retries < MOST_RETRIES:
            raise InvalidRequest(f"retries is a number from 0 on, not {self.retries!r}")
        if not isinstance(self.profile, bool):
            raise InvalidRequest(f"profile is True or False, not {self.profile!r}")
        if not isinstance(self.keep, bool):
            if isinstance(self.keep, str) or not isinstance(self.keep, Sequence):
                raise InvalidRequest(f"keep is True, False or names of outputs, not {self.keep!r}")
            object.__setattr__(self, "keep", tuple(self.keep))

    def caller(self, session: Session) -> Caller:
        client = session.client if self.client is None else self.client
        keep = self.keep if isinstance(self.keep, bool) else tuple(self.keep)
        return Caller(client, self.deadline_s, self.retries, self.profile, keep, session.id)


class Function:
    """A registered kTask with its constants bound, or several that share them: a model's variants, of which each
    invocation takes the one for the shapes of its inputs. It can be sent to Ray tasks and used there."""

    def __init__(
        self,
        pool: str,
        name: str,
        signatures: tuple[Signature, ...],
        constants: Any,
        awaited: Sequence[Any],
        options: Options | None = None,
    ) -> None:
        self._pool = pool
        self._name = name
        self._signatures = signatures
        self._constants = constants
        self._awaited = list(awaited)  # constants that were references; emptied when they are known to be complete
        self._options = options or Options()

    @property
    def tasks(self) -> tuple[KTask, ...]:
        """Its kTasks: of a model one for each variant, those for the smallest inputs first."""
        return tuple(signature.task for signature in self._signatures)

    @property
    def task(self) -> KTask:
        """Its kTask, or the first of them."""
        return self._signatures[0].task

    @property
    def client(self) -> str | None:
        """Whom its options name; None: whoever invokes it."""
        return self._options.client

    def options(
        self,
        *,
        client: str | None = None,
        deadline_s: float | None = None,
        scalars: Mapping[str, Any] | None = None,
        retries: int | None = None,
        profile: bool | None = None,
        keep: bool | Sequence[str] | None = None,
    ) -> Function:
        """This function with other defaults for its invocations; what is None stays as it is."""
        given = {
            "client": client,
            "deadline_s": deadline_s,
            "scalars": scalars,
            "retries": retries,
            "profile": profile,
            "keep": keep,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return self._with(self._signatures, replace(self._options, **changed))

    def variant(self, /, **shapes: int | Sequence[int]) -> Function:
        """This function for inputs of these shapes only, by name: what to call with references, whose shapes cannot be
        seen. `f.variant(x=(8, 3, 224, 224)).remote(x=ref)`. Not all need be given, if the others decide.

        Raises:
            UnexpectedInput: no such input. NoVariant: none is for these shapes. UndecidedVariant: several are.
        """
        number = of_shapes(self._name, [signature.taken for signature in self._signatures], shapes)
        return self._with((self._signatures[number],), self._options)

    def _with(self, signatures: tuple[Signature, ...], options: Options) -> Function:
        return Function(self._pool, self._name, signatures, self._constants, self._awaited, options)

    def remote(self, /, *arrays: Any, **inputs: Any) -> Any:
        """Invoke it; see `invoke` for what inputs may be and what comes back. Scalars may stand among the inputs.

        Inputs are given by name, or in order: that of the model, or that in which a kTask's kernels first read them
        (`KTask.inputs`).

        In a Ray task that has not called `init`, this attaches to the pool in which the function was registered.
        """
        session = session_for(self._pool)
        options = self._options
        scalars = dict(options.scalars or {})
        first = self._signatures[0]
        for name in [n for n in inputs if n in first.task.scalars and n not in first.taken]:
            scalars[name] = inputs.pop(name)
        return self._send(session, inputs, replace(options, scalars=scalars), arrays)

    def _send(self, session: Session, inputs: Mapping[str, Any], options: Options, arrays: Sequence[Any] = ()) -> Any:
        if self._awaited and STORE.complete(self._awaited):
            self._awaited.clear()
        caller = options.caller(session)
        signature, inputs = choose_signature(self._name, self._signatures, arrays, inputs, STORE)
        message, refs = pack(signature, inputs, options.scalars, caller, STORE, self._constants, self._awaited)
        try:
            return session.send(signature, message, refs)
        except KaasError:
            raise
        except ValueError as error:  # Ray no longer knows who owns the constants
            raise NotInitialized(f"{self!r} was registered in a Ray that has ended: register it again") from error

    def upkeep(self) -> tuple[tuple[Signature, ...], list[Any]]:
        """What `kaas.caching` says of it: its signatures, and the references to its constants and to those awaited."""
        return self._signatures, [*(() if self._constants is None else (self._constants,)), *self._awaited]

    def __reduce__(self) -> tuple[Any, ...]:
        parts = [(signature.task, signature.spec.bindings, signature.inputs) for signature in self._signatures]
        return _function, (self._pool, self._name, parts, self._constants, self._awaited, self._options)

    def __repr__(self) -> str:
        bound = dict.fromkeys(binding.buffer for signature in self._signatures for binding in signature.spec.bindings)
        variants = f", {len(self._signatures)} variants" if len(self._signatures) > 1 else ""
        return (
            f"<kaas.Function {self._name!r} in pool {self._pool!r}{variants}, constants: {', '.join(bound) or 'none'}>"
        )


def _function(
    pool: str,
    name: str,
    parts: Sequence[tuple[KTask, Sequence[wire.Binding], Sequence[Buffer] | None]],
    constants: Any,
    awaited: Sequence[Any],
    options: Options,
) -> Function:
    signatures = tuple(Signature.of(*part) for part in parts)
    return Function(pool, name, signatures, constants, awaited, options)


def _attach_in_task(name: str) -> Session:
    """Attach a Ray worker to the pool that a function belongs to; a driver has to call init."""
    if not ray.is_initialized() or not _in_ray_worker():
        raise NotInitialized("call kaas.init() first")
    return _attach_running(name)


def _in_ray_worker() -> bool:
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def attach(name: str = "kaas", *, address: str = "auto") -> None:
    """Attach this process to a pool that runs already; unlike `init` this starts nothing.

    Raises:
        NotInitialized: no Ray at that address, or no pool of that name on it.
        ConfigMismatch: the process is attached to another pool.
    """
    _refuse_second_pool(name)
    if not ray.is_initialized():
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ray.exceptions.RayError) as error:
            raise NotInitialized(f"cannot connect to Ray at {address!r}: {error}") from error
    _attach_running(name)


def _attach_running(name: str) -> Session:
    global _session
    with _lock:
        if _session is None or _session.gone:
            try:
                pool = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError as error:
                raise NotInitialized(f"no pool {name!r} runs") from error
            _session = Session(name, pool, ray.get_runtime_context().get_job_id(), False, pool.invoke).watch().attend()
        return _session


@lru_cache(maxsize=1024)
def _signature(task: KTask) -> Signature:
    return Signature.of(task)
