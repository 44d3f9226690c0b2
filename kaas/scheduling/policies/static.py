"""Static: each client has devices of its own, and no others, even if others are idle: the baseline without sharing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kaas.errors import PolicyError
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import SHARED, Partition, Serves, partition


class Static(Scheduler):
    """First come, first served within each share, by `Scheduler.order`.

    On a client's devices its eTasks compete with its kTasks.

    Args:
        shares: for each client the indices of its devices, or how many it gets; these are then given out from the
            lowest that no client named, in the order of the mapping. All other clients share what is left.
    """

    def __init__(self, devices: Sequence[PhysicalDevice], *, shares: Mapping[str, Sequence[int] | int] = {}) -> None:
        self._shares = _given_out(shares, [device.index for device in devices])
        self._own: dict[str, int] = {client: place for place, client in enumerate(self._shares, start=1)}
        super().__init__(devices)

    def partitions(self, devices: Sequence[PhysicalDevice]) -> list[Partition]:
        """Return the devices of no client, then those of each client."""
        taken = {index for share in self._shares.values() for index in share}
        reason = "every device of the pool belongs to another client"
        rest = partition([d for d in devices if d.index not in taken], home=SHARED, why_empty=reason)
        own = [
            partition(
                [device for device in devices if device.index in share],
                home=Serves(WorkerKind.EXECUTOR, client),
                why_empty=f"client {client!r} has no device of the pool",
            )
            for client, share in self._shares.items()
        ]
        return [rest, *own]

    def place(self, kind: WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        """Return a group on the client's devices; clients without devices share a group on the others."""
        where = self._placement.partitions[self._own.get(client, 0)]
        if kind is WorkerKind.ETASK:
            return Serves(kind, client, function), where
        return (Serves(kind, client) if client in self._own else SHARED), where


def _given_out(shares: Mapping[str, Sequence[int] | int], devices: list[int]) -> dict[str, tuple[int, ...]]:
    if not isinstance(shares, Mapping):
        raise PolicyError(f"shares is devices, or how many, for each client, not {shares!r}", policy="static")
    for share in shares.values():
        if not all(type(each) is int for each in ([share] if isinstance(share, int) else share)):
            raise PolicyError(f"a share is indices of devices, or how many, not {share!r}", policy="static")
    named = [index for share in shares.values() if not isinstance(share, int) for index in share]
    if len(set(named)) < len(named):
        raise PolicyError(f"a device belongs to one client: {shares!r}", policy="static")
    if unknown := sorted(set(named) - set(devices)):
        raise PolicyError(f"there is no device {unknown[0]}: {shares!r}", policy="static")
    left = [index for index in sorted(devices) if index not in named]
    given: dict[str, tuple[int, ...]] = {}
    for client, share in shares.items():
        if not isinstance(share, int):
            given[client] = tuple(share)
        elif 0 <= share <= len(left):
            given[client], left = tuple(left[:share]), left[share:]
        else:
            raise PolicyError(f"{client!r} cannot have {share} devices, {len(left)} are left", policy="static")
    return given
