"""What gives executors their processes: Ray's actors, or plain processes of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kaas.scheduling.events import StartWorker
from kaas.wire.messages import Address
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption


class Hosts(Protocol):
    """Belongs to the event loop of the pool's sockets. It also carries what does not go over these."""

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        """Start a process whose executor says Hello to this address, in the name of its worker's number. Raises
        whatever kept it from starting."""
        ...

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        """The executors that an earlier process of the pool has left, one for each device; they say Hello too."""
        ...

    def supply(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]] | None:
        """Have an executor get the objects beside what has this number; None among refs stands for what it has.

        None: they are on their way. Otherwise the values of each, Blocks or buffers, which are to go over the sockets.

        Raises:
            KaasError: they are not to be had.
        """
        ...

    async def collect(self, worker: int, parcel: int, count: int) -> Sequence[Any]:
        """The outputs in an executor's parcel as whoever asked for them gets them, complete.

        Raises:
            WorkerLost, KaasError
        """
        ...

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; why it did."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker's process now; nothing happens if it is gone or never came up."""
        ...
