"""One thing that is asked of the pool: what is sent, and what stands beside it."""

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
    """What has no answer yet, as it is sent, and sent again to a pool that has started again.

    Fields:
        what: of an Ask; "" if it is a Submit. attached: references, Leases, and bytes. keys: of objects that are held
            until the answer. function: to be introduced first. owner: lives until then, with what is held for it.
    """

    repeatable: ClassVar[bool] = True  # kTasks are pure, and other questions may be asked twice

    pending: PendingReply
    what: str
    frames: Sequence[Any]
    attached: Sequence[Any] = ()
    keys: Sequence[bytes] = ()
    function: FunctionSignature | None = None
    owner: Any = None

    @property
    def leases(self) -> list[BlockLease]:
        return [item for item in self.attached if isinstance(item, BlockLease)]


def placed(asked: PendingCall, shares: bool) -> tuple[list[Attachment], list[Any]]:
    """What stands beside a request as its header says it, and all its frames."""
    attached: list[Attachment] = []
    frames = [*asked.frames]
    for item in asked.attached:
        if isinstance(item, BlockLease) and shares:
            attached.append(item.block)
        elif isinstance(item, BlockLease | bytes):
            frames.append(item.view if isinstance(item, BlockLease) else item)
            attached.append(Framed(len(frames)))
        else:
            attached.append(Named(item.binary()))
    return attached, frames


class CallAttachments:
    """A session's store, but for inputs by value: they go beside the call as its line carries them. Ends with whether
    the call was sent."""

    def __init__(self, store: ObjectSink, put: Callable[[memoryview], BlockLease | bytes]) -> None:
        self.is_ref = store.is_ref
        self.complete = store.complete
        self._put = put
        self._leases: list[BlockLease] = []

    def put(self, value: Any) -> BlockLease | bytes:
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
