"""A process's way to one pool: what it has told the pool, and tells it again when that starts anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any

import ray

from kaas.errors import ConfigMismatch, KaasError, NotInitialized, PoolStopped
from kaas.pool import wire
from kaas.pool.packing import Signature
from kaas.pool.ray_pool import existing
from kaas.pool.ray_transport import NAMESPACE
from kaas.request import outputs_type


class _RayStore:
    """Ray's object store as packing sees it."""

    is_ref = staticmethod(lambda value: isinstance(value, ray.ObjectRef))
    put = staticmethod(ray.put)

    @staticmethod
    def complete(refs: Sequence[Any]) -> bool:
        unique = list(dict.fromkeys(refs))
        return not existing(unique, len(unique), 0)[1]


STORE = _RayStore()


@dataclass(slots=True, eq=False)
class Session:
    """This process's way to one pool."""

    name: str
    pool: Any
    client: str
    started_ray: bool
    invoke: Any
    id: str = field(default_factory=partial(token_hex, 8))
    registered: dict[str, Callable[[], Any]] = field(default_factory=dict)
    etask_calls: Iterator[int] = field(default_factory=count)
    pins: dict[tuple[bytes, int | None], tuple[bytes, list[Any]]] = field(default_factory=dict)
    gone: bool = False

    def watch(self, life: str = "") -> Session:
        """Note the pool's end, so that calls after it say so at once, and when it starts again."""
        self.pool.next_life.remote(life).future().add_done_callback(partial(self._note, life))
        return self

    def _note(self, life: str, watched: Future[str]) -> None:
        ended = watched.exception() is not None
        if ended or not watched.result():
            self.gone = True
        else:  # in a thread of its own: Ray calls this in one that must not send
            threading.Thread(target=self._go_on, args=(life, watched.result()), daemon=True).start()

    def _go_on(self, before: str, life: str) -> None:
        """The pool is in another life than before, in which it knows no pins, and no functions if its store is lost."""
        if not ray.is_initialized():
            return
        if before:
            for register in list(self.registered.values()):
                register()
            for pin in list(self.pins.values()):
                self.pool.upkeep.remote(*pin)
        self.watch(life)

    def attend(self) -> Session:
        """Let the pool note this process's end."""
        self.pool.attend.remote(self.id, [self.pool.attended.remote(self.id)])
        return self

    def check(self) -> None:
        """
        Raises:
            PoolStopped
        """
        if self.gone:
            raise PoolStopped(f"pool {self.name!r} is gone; kaas.init() starts another", pool=self.name)

    def send(self, signature: Signature, message: bytes, refs: list[Any]) -> Any:
        self.introduce(signature)
        outputs = signature.task.outputs
        if len(outputs) == 1:
            return self.invoke.remote(message, refs) if refs else self.invoke.remote(message)
        sent = self.invoke.options(num_returns=len(outputs)).remote(message, refs)
        return outputs_type(tuple(buffer.name for buffer in outputs))(*sent)

    def introduce(self, signature: Signature) -> None:
        """Tell the pool of a function, once; the message needs no answer."""
        self.check()
        if signature.key not in self.registered:
            spec, task = wire.encode(signature.spec), signature.task.to_msgpack()
            self.register(signature.key, lambda: self.pool.register.remote(spec, task))

    def register(self, key: str, tell: Callable[[], Any]) -> None:
        """Tell the pool of a function, now and in each later life of it."""
        self.registered[key] = tell
        tell()


@dataclass(slots=True, eq=False)
class Here:
    """This process's session, if it has one, and who may change that."""

    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


HERE = Here()


def current_session() -> Session:
    """
    Raises:
        NotInitialized
    """
    session = HERE.session
    if session is None or not ray.is_initialized():
        raise NotInitialized("call kaas.init() first")
    return session


def session_for(pool: str) -> Session:
    """This process's session; a Ray task that has none, or whose pool is gone, is attached to this pool.

    Raises:
        NotInitialized
    """
    session = HERE.session
    if session is None or not ray.is_initialized() or (session.gone and _in_ray_worker()):
        return _attach_in_task(pool)
    return session


def attach_running(name: str) -> Session:
    """This process's session; without one, it is attached to the pool of this name.

    Raises:
        NotInitialized: no such pool runs.
    """
    with HERE.lock:
        if HERE.session is None or HERE.session.gone:
            try:
                pool = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError as error:
                raise NotInitialized(f"no pool {name!r} runs") from error
            HERE.session = (
                Session(name, pool, ray.get_runtime_context().get_job_id(), False, pool.invoke).watch().attend()
            )
        return HERE.session


def _attach_in_task(name: str) -> Session:
    """Attach a Ray worker to the pool that a function belongs to; a driver has to call init."""
    if not ray.is_initialized() or not _in_ray_worker():
        raise NotInitialized("call kaas.init() first")
    return attach_running(name)


def _in_ray_worker() -> bool:
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def refuse_second_pool(name: str) -> None:
    """
    Raises:
        ConfigMismatch: the process is attached to a pool of another name.
    """
    if HERE.session is not None and HERE.session.name != name:
        raise ConfigMismatch(
            f"this process is attached to pool {HERE.session.name!r}; call kaas.shutdown() before another",
            pool=HERE.session.name,
            differences=("name",),
        )


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
        raise plain(error) from None


def plain(error: KaasError) -> KaasError:
    """An error as it was raised, out of the class that Ray makes of it."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, KaasError) else error
