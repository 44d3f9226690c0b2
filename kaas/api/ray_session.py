"""The session with a pool on Ray: starts or finds the pool, and registers functions again when the pool restarts."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ClassVar, TypeVar, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kaas.api.session import HERE, Session, needs_ray, program_name
from kaas.config import Config
from kaas.errors import ExecutorDied, InvalidConfig, KaasError, NotInitialized, PolicyError, PoolStopped
from kaas.ktask.request import outputs_type
from kaas.pool.on_ray import programs
from kaas.pool.on_ray.cluster import NAMESPACE, SOFTWARE_RESOURCE, cluster_resources, existing
from kaas.pool.on_ray.pool_actor import PoolActor
from kaas.wire import specs
from kaas.wire.messages import Address
from kaas.wire.packing import FunctionSignature
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status

T = TypeVar("T")

SOFTWARE_SLOTS = 16
"""Software GPUs for all pools on a Ray that `init` starts."""
LOCAL = "local"
"""The address that has Ray start a cluster of its own."""
LISTEN_S = 10.0  # for a connection to a Ray's address
CONCURRENT_REQUESTS = 100_000
POOL_OPTIONS: dict[str, Any] = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "get_if_exists": True,
    "num_cpus": 0,
    "max_concurrency": CONCURRENT_REQUESTS,
    "max_restarts": -1,
    "max_task_retries": -1,  # a kTask is pure, and other calls may be repeated
}
"""The options of a pool's actor."""


class _RayStore:
    """Ray's object store as packing sees it."""

    is_ref = staticmethod(lambda value: isinstance(value, ray.ObjectRef))
    put = staticmethod(ray.put)

    @staticmethod
    def put_all(values: tuple[Any, ...]) -> Any:
        return ray.put(values)

    @staticmethod
    def complete(refs: Sequence[Any]) -> bool:
        unique = list(dict.fromkeys(refs))
        return not existing(unique, len(unique), 0)[1]


STORE = _RayStore()


@dataclass(slots=True, eq=False, kw_only=True)
class RaySession(Session):
    """A session with a pool on Ray.

    Fields:
        pool: its actor. invoke: the actor's method, looked up once. started_ray: `init` started Ray for this session.
    """

    ray: ClassVar[bool] = True
    pool: Any
    invoke: Any
    started_ray: bool = False
    registered_etasks: Iterator[int] = field(default_factory=count)

    @classmethod
    def to(cls, name: str, pool: Any, started_ray: bool = False) -> RaySession:
        """Return a session that the pool knows."""
        session = cls(name, programs.client(program_name()), pool=pool, invoke=pool.invoke, started_ray=started_ray)
        return session.watch().attend()

    def __post_init__(self) -> None:
        self.store = STORE

    def alive(self) -> bool:
        """Return True if this process may use the session: a pool on Ray needs Ray."""
        return bool(ray.is_initialized())

    def watch(self, epoch: str = "") -> RaySession:
        """Note the pool's end, so that later calls fail at once, and each restart of it."""
        self.pool.next_epoch.remote(epoch).future().add_done_callback(partial(self._note, epoch))
        return self

    def _note(self, epoch: str, watched: Future[str]) -> None:
        ended = watched.exception() is not None
        if ended or not watched.result():
            self.gone = True
            gone = PoolStopped(f"pool {self.name!r} is gone", pool=self.name)
            threading.Thread(target=self.end_calls, args=(gone,), daemon=True).start()
        else:  # in a thread of its own: Ray calls this in a thread that must not send
            threading.Thread(target=self._go_on, args=(epoch, watched.result()), daemon=True).start()

    def _go_on(self, before: str, epoch: str) -> None:
        """Take in the pool's next epoch, which knows no pins, and no functions if its store is lost."""
        if not ray.is_initialized():
            return
        if before:
            for register in list(self.registered.values()):
                register()
            for pin in list(self.pins.values()):
                self.pool.cache_command.remote(*pin)
        if self._calls is not None:
            self._calls.moved(epoch)
        self.watch(epoch)

    def attend(self) -> RaySession:
        """Let the pool note this process's end."""
        self.pool.attend.remote(self.id, [self.pool.attended.remote(self.id)])
        return self

    def address(self) -> tuple[Address, str]:
        """Return the pool's address and this process's node; raise PoolStopped."""
        if not ray.is_initialized():
            raise PoolStopped(f"pool {self.name!r} is gone: Ray has ended", pool=self.name)
        return self._reply(Address, self.pool.address), ray.get_runtime_context().get_node_id()

    def hold(self, epoch: str, refs: list[Any]) -> None:
        """Have the pool hold objects that calls are going to name."""
        self.pool.hold.remote(self.id, epoch, refs)

    def drop(self, epoch: str, keys: list[bytes]) -> None:
        """Undo `hold`."""
        self.calls.drop(keys, epoch)

    def introduce(self, signature: FunctionSignature) -> None:
        """Register a function with the pool, once."""
        self.check()
        if signature.key not in self.registered:
            spec, task = specs.encode(signature.spec), signature.task.to_msgpack()
            self.register(signature.key, lambda: self.pool.register.remote(spec, task))

    def register(self, key: str, send: Callable[[], Any]) -> None:
        """Register a function or an eTask with the pool, now and in each later epoch of it."""
        self.registered[key] = send
        send()

    def send(self, signature: FunctionSignature, message: bytes, refs: list[Any]) -> Any:
        """Invoke a function; return its ObjectRef, or a named tuple of them."""
        self.introduce(signature)
        outputs = signature.task.outputs
        if len(outputs) == 1:
            return self.invoke.remote(message, refs) if refs else self.invoke.remote(message)
        sent = self.invoke.options(num_returns=len(outputs)).remote(message, refs)
        return outputs_type(tuple(buffer.name for buffer in outputs))(*sent)

    def prefetch(self, message: bytes, refs: list[Any]) -> Any:
        """Send an encoded cache command; return an ObjectRef of its end."""
        return self.pool.cache_command.remote(message, refs)

    def cache_command(self, message: bytes, refs: list[Any]) -> None:
        """Send an encoded cache command, and wait until it is done."""
        self._reply(object, self.pool.cache_command, message, refs)

    def status(self) -> Status:
        """Return the pool's status."""
        return self._reply(Status, self.pool.status)

    def stats(self, reset: bool) -> Stats:
        """Return the pool's figures, and begin anew if `reset`."""
        return self._reply(Stats, self.pool.stats, reset)

    def trace(self, seconds: float) -> bytes:
        """Return the pool's trace of so many seconds."""
        return self._reply(bytes, self.pool.trace, seconds)

    def pardon(self, function: str) -> bool:
        """Lift a function's quarantine; return True if it was in quarantine."""
        return self._reply(bool, self.pool.pardon, function)

    def set_share(self, name: str, message: bytes) -> None:
        """Give a share, also in later epochs of the pool."""
        self._reply(object, self.pool.set_share, self.id, message)
        self.registered[name] = lambda: self.pool.set_share.remote(self.id, message)

    async def in_own_process(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a process of its own, on a node with devices of the pool; return its value.

        The process is a Ray worker, like those of eTasks. It reserves no device.

        Raises:
            KaasError: the function raised it. ExecutorDied: the process ended without a result.
        """
        kinds = {"GPU" if device.kind == "gpu" else SOFTWARE_RESOURCE for device in self.status().devices}
        options: dict[str, Any] = {"num_cpus": 0, "max_calls": 1, "max_retries": 0}
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["Alive"] and kinds & node["Resources"].keys():
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
        decorate: Any = ray.remote(**options)
        made = decorate(function).remote(*args)
        try:
            value: T = await made
        except asyncio.CancelledError:
            ray.cancel(made, force=True)
            raise
        except KaasError as error:
            raise plain(error) from None
        except ray.exceptions.RayError as error:
            raise ExecutorDied(str(error), reason=str(error)) from error
        return value

    def _reply(self, kind: type[T], method: Any, *args: Any) -> T:  # noqa: ARG002 - for the type checker
        """Call a method of the pool's actor; return its value.

        Raises:
            PoolStopped, KaasError
        """
        try:
            return cast("T", method.remote(*args).future().result())  # ray.get warns in an async actor's threads
        except ray.exceptions.RayActorError as error:
            raise PoolStopped(f"pool {self.name!r} is gone: {error}", pool=self.name) from error
        except KaasError as error:
            raise plain(error) from None

    def shut_down(self) -> None:
        """Stop the pool, and Ray if this session started it."""
        why = "was shut down"
        try:
            # replies leave the actor in order: after the second one all earlier replies have come
            if all(ray.get(self.pool.stop.remote()) for _ in range(2)):
                ray.kill(self.pool)
            else:
                why = "was left: it is a server's, which goes on"
        except ray.exceptions.RayActorError:
            pass  # another program stopped it first
        self.end_calls(PoolStopped(f"pool {self.name!r} {why}", pool=self.name))
        programs.forget_program(self.name)
        if self.started_ray:
            ray.shutdown()


# --- a pool is started or found


def open_session(name: str, wanted: Config | None, address: str | None, here: bool = False) -> tuple[RaySession, bool]:
    """Return the session with the pool of this name, and True if this call started the pool.

    The caller holds the lock of HERE. With `here` a pool that starts stays on this machine.

    Raises:
        ConfigMismatch, InvalidConfig
    """
    session = HERE.session
    assert session is None or isinstance(session, RaySession), "the caller refuses pools of another kind"
    started = session.started_ray if session else connect(address, wanted)
    pool, opened = _open_pool(name, wanted, here)
    if session is None or session.pool != pool:
        session = RaySession.to(name, pool, started)
    programs.note_program(session.name, session.client)
    return session, opened


def connect(address: str | None, wanted: Config | None) -> bool:
    """Connect to Ray; return True if that started a Ray."""
    if ray.is_initialized():
        return False
    if address not in (None, LOCAL):
        _reach(address)
        return False
    software = sum(device.kind == "software" for device in (wanted and wanted.devices) or ())
    try:
        ray.init(address, resources={SOFTWARE_RESOURCE: max(SOFTWARE_SLOTS, software)})
    except ValueError:  # Ray has found a cluster to connect to, and raises this before it connects
        ray.init()
        return False
    return True


def _reach(address: str, **options: Any) -> None:
    """Connect to a Ray that runs.

    Raises:
        NotInitialized
    """
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdecimal() and "://" not in address:  # where nothing listens, Ray tries for many minutes
            socket.create_connection((host, int(port)), LISTEN_S).close()
        ray.init(address=address, **options)
    except (OSError, OverflowError, ValueError, ray.exceptions.RayError) as error:
        # by default Ray sends its token only to a Ray that it has found itself ("auto")
        unasked = "RAY_AUTH_MODE" not in os.environ
        asks = unasked and (type(error) is ConnectionError or isinstance(error, ray.exceptions.RayError))
        hint = "; if that Ray asks for a token, set RAY_AUTH_MODE=token" if asks else ""
        raise NotInitialized(f"cannot connect to Ray at {address!r}: {error}{hint}") from error


def _open_pool(name: str, wanted: Config | None, here: bool) -> tuple[Any, bool]:
    """Return the running pool of this name and False, or a new pool and True. A new pool replaces an ending one."""
    gpus = int(cluster_resources().get("GPU", 0))
    actor: Any = ray.remote(PoolActor).options(name=name, **POOL_OPTIONS, **(_pinned() if here else {}))
    refused = False
    while True:
        pool = actor.remote(name, (wanted or Config()).resolved(gpus, ray=True))
        try:
            opened: bool = ray.get(pool.attach.remote(wanted))
        except ray.exceptions.RayActorError:
            if refused:
                raise
            refused = True
        except KaasError as error:
            if isinstance(error, PolicyError | InvalidConfig | PoolStopped):
                ray.kill(pool)  # it never opened, or never will again: the name becomes free
            if not isinstance(error, PoolStopped):
                raise plain(error) from None
        else:
            return pool, opened


def _pinned() -> dict[str, Any]:
    """Return the options of an actor that starts, and restarts, on this node only."""
    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def attach(name: str, address: str) -> None:
    """Attach this process to a pool that runs already.

    Raises:
        NotInitialized
    """
    if not ray.is_initialized():
        _reach(address, logging_level=logging.WARNING)
    session = attach_running(name)
    assert isinstance(session, RaySession), "the caller refuses pools of another kind"
    programs.note_program(session.name, session.client)


def attach_running(name: str) -> Session:
    """Return this process's session; a process without a session is attached to the pool of this name.

    Raises:
        NotInitialized: no such pool runs.
    """
    with HERE.lock:
        if HERE.session is None or HERE.session.gone:
            try:
                pool = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError as error:
                raise NotInitialized(f"no pool {name!r} runs on the Ray at {ray_address()}") from error
            HERE.session = RaySession.to(name, pool)
        return HERE.session


def ray_address() -> str:
    """Return host and port of the Ray that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def session_for(pool: str | None) -> Session:
    """Return this process's session.

    A Ray task that has none, or whose pool is gone, is attached to the pool, or to its program's.

    Raises:
        NotInitialized
    """
    session = HERE.session
    if session is not None and session.alive() and not (session.gone and programs.in_ray_worker()):
        return session
    if not ray.is_initialized() or not programs.in_ray_worker():  # a driver has to call init
        raise NotInitialized("call kaas.init() first")
    return attach_running(pool or programs.program_pool())


def ray_session_for(pool: str | None, what: str) -> RaySession:
    """Return the session as `session_for` does, for a feature (`what`) of pools on Ray only.

    Raises:
        NotInitialized, InvalidRequest
    """
    session = session_for(pool)
    if not isinstance(session, RaySession):
        raise needs_ray(what, session.name)
    return session


def plain(error: KaasError) -> KaasError:
    """Return an error as it was raised, without Ray's wrapping class."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, KaasError) else error
