"""A call of the pool that has no reply yet: its message, and the attachments."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

from kaas.futures import PendingReply
from kaas.wire.connections.shared_memory import BlockLease
from kaas.wire.messages import Attachment, Framed, Named
from kaas.wire.packing import FunctionSignature, ObjectSink


@dataclass(slots=True)
class PendingCall:
    """A call without a reply, as it is sent, and sent again to a pool that has started again.

    Fields:
        what: of a PoolQuery; "" for a Submit. attached: references or their names, leases, bytes. keys: of objects held
            until the reply. function: to be announced before the call. owner: kept alive until the reply, with the
            objects that are held for it.
    """

    repeatable: ClassVar[bool] = True  # kTasks are pure, and other queries may be sent twice

    pending: PendingReply
    what: str
    frames: Sequence[Any]
    attached: Sequence[Any] = ()
    keys: Sequence[bytes] = ()
    function: FunctionSignature | None = None
    owner: Any = None

    @property
    def leases(self) -> list[BlockLease]:
        """The blocks of shared memory that the call leases."""
        return [item for item in self.attached if isinstance(item, BlockLease)]


def placed(call: PendingCall, shares: bool) -> tuple[list[Attachment], list[Any]]:
    """Return the attachments of a call as its header names them, and all its frames."""
    attached: list[Attachment] = []
    frames = [*call.frames]
    for item in call.attached:
        if isinstance(item, BlockLease) and shares:
            attached.append(item.block)
        elif isinstance(item, BlockLease | bytes):
            frames.append(item.view if isinstance(item, BlockLease) else item)
            attached.append(Framed(len(frames)))
        else:
            attached.append(item if isinstance(item, Named) else Named(item.binary()))
    return attached, frames


class CallAttachments:
    """A session's store, but for inputs by value: these travel with the call, as its connection carries them.

    A `with` block that raises releases the leases, unless a call is open that has them: the pool may read them.
    """

    def __init__(self, store: ObjectSink, put: Callable[[memoryview], BlockLease | bytes]) -> None:
        self.is_ref = store.is_ref
        self.complete = store.complete
        self._put = put
        self._leases: list[BlockLease] = []

    def put(self, value: Any) -> BlockLease | bytes:
        """Attach a value to the call."""
        item = self._put(memoryview(value))
        if isinstance(item, BlockLease):
            self._leases.append(item)
        return item

    def __enter__(self) -> CallAttachments:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is not None:
            for lease in self._leases:
                if not lease.of_call:
                    lease.release()


@dataclass(slots=True)
class _Held:
    """A held reference. epoch: of the pool that holds it; None if no pool does yet."""

    ref: Any
    users: int = 0
    epoch: str | None = None


class RefLeases:
    """References that calls name, or functions for as long as they live, each held once.

    `hold` has the pool hold references, and returns the pool's epoch, None if there is no pool now.
    `drop` lets that epoch release them. The pool counts, so a drop may overtake a hold.
    """

    def __init__(self, hold: Callable[[list[Any]], str | None], drop: Callable[[str, list[bytes]], None]) -> None:
        self._hold = hold
        self._drop = drop
        self._lock = threading.Lock()
        self._held: dict[bytes, _Held] = {}
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self._unkept: SimpleQueue[list[bytes]] | None = None

    def use(self, refs: Sequence[Any]) -> list[bytes]:
        """Hold references, and return their keys, for `release`."""
        keys = [ref.binary() for ref in refs]
        with self._lock:
            used = [self._held.setdefault(key, _Held(ref)) for key, ref in zip(keys, refs, strict=True)]
            new = []
            for held in used:
                held.users += 1
                if held.users == 1:
                    new.append(held)
            try:
                self._hold_all(new)
            except BaseException:
                self._subtract(keys)
                raise
        return keys

    def _hold_all(self, new: Sequence[_Held]) -> None:
        if new:
            epoch = self._hold([held.ref for held in new])
            for held in new:
                held.epoch = epoch

    def release(self, keys: Iterable[bytes]) -> None:
        """Release the references of these keys."""
        with self._lock:
            unused = self._subtract(keys)
        for epoch, dropped in unused.items():
            self._drop(epoch, dropped)

    def _subtract(self, keys: Iterable[bytes]) -> dict[str, list[bytes]]:
        """Return the keys that no call uses any more, by the epoch that holds them."""
        unused: dict[str, list[bytes]] = {}
        for key in keys:
            held = self._held[key]
            held.users -= 1
            if not held.users:
                del self._held[key]
                if held.epoch is not None:
                    unused.setdefault(held.epoch, []).append(key)
        return unused

    def keep(self, owner: Any, refs: Sequence[Any]) -> None:
        """Hold references for as long as their owner lives. A second call for the same owner changes nothing."""
        if owner in self._kept:
            return
        keys = self.use(refs)
        with self._lock:
            first = owner not in self._kept
            self._kept.add(owner)
            if self._unkept is None:
                self._unkept = SimpleQueue()
                threading.Thread(target=self._tidy, args=(self._unkept,), name="kaas-holds", daemon=True).start()
            unkept = self._unkept
        if first:  # an owner may be collected while this thread holds any lock, so another thread releases
            weakref.finalize(owner, unkept.put, keys).atexit = False
        else:
            self.release(keys)

    def _tidy(self, unkept: SimpleQueue[list[bytes]]) -> None:
        while keys := unkept.get():
            self.release(keys)

    def again(self, epoch: str) -> None:
        """Have a restarted pool, which is in this epoch now, hold the references that it does not hold yet."""
        with self._lock:
            self._hold_all([held for held in self._held.values() if held.epoch != epoch])

    def close(self) -> None:
        """End the thread that releases references."""
        if self._unkept is not None:
            self._unkept.put([])
