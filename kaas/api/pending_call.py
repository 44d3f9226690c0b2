"""One thing that is asked of the pool: what is sent, and what stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.futures import Pending
from kaas.wire.connections.shared_memory import Lease
from kaas.wire.messages import Beside, Framed, Named
from kaas.wire.packing import Signature, Store


@dataclass(slots=True)
class Asked:
    """What has no answer yet, as it is sent, and sent again to a pool that has started again.

    Fields:
        what: of an Ask; "" if it is a Submit. beside: references, Leases, and bytes. keys: of objects that are held
            until the answer. function: to be introduced first. owner: lives until then, with what is held for it.
    """

    pending: Pending
    what: str
    frames: Sequence[Any]
    beside: Sequence[Any] = ()
    keys: Sequence[bytes] = ()
    function: Signature | None = None
    owner: Any = None

    @property
    def leases(self) -> list[Lease]:
        return [item for item in self.beside if isinstance(item, Lease)]


def placed(asked: Asked, shares: bool) -> tuple[list[Beside], list[Any]]:
    """What stands beside a request as its header says it, and all its frames."""
    beside: list[Beside] = []
    frames = [*asked.frames]
    for item in asked.beside:
        if isinstance(item, Lease) and shares:
            beside.append(item.block)
        elif isinstance(item, Lease | bytes):
            frames.append(item.view if isinstance(item, Lease) else item)
            beside.append(Framed(len(frames)))
        else:
            beside.append(Named(item.binary()))
    return beside, frames


class Aside:
    """A session's store, but for inputs by value: they go beside the call as its line carries them. Ends with whether
    the call was sent."""

    def __init__(self, store: Store, put: Callable[[memoryview], Lease | bytes]) -> None:
        self.is_ref = store.is_ref
        self.complete = store.complete
        self._put = put
        self._leases: list[Lease] = []

    def put(self, value: Any) -> Lease | bytes:
        item = self._put(memoryview(value))
        if isinstance(item, Lease):
            self._leases.append(item)
        return item

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is not None:
            for lease in self._leases:
                lease.release()
