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

from kaas.errors import PoolStopped
from kaas.pool import wire
from kaas.pool.packing import Signature
from kaas.pool.ray_pool import existing
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
