"""A call of the pool that has no reply yet: its message, and the attachments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kaas.futures import PendingReply
from kaas.wire.connections.shared_memory import BlockLease
from kaas.wire.messages import Attachment, Framed, Named
from kaas.wire.packing import FunctionSignature, ObjectSink


@dataclass(slots=True)
class PendingCall:
    """A call without a reply, as it is sent, and sent again to a pool that has started again.

    Fields:
        what: of a PoolQuery; "" for a Submit. attached: references, leases and bytes. keys: of objects that are held
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
            attached.append(Named(item.binary()))
    return attached, frames


class CallAttachments:
    """A session's store, but for inputs by value: these travel with the call, as its connection carries them.

    A `with` block that raises releases the leases: the call was not sent.
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
                lease.release()
