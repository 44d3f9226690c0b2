"""The objects that stay in a device's memory (GreedyDual-Size-Frequency; FaasCache, 2021): those worth most by byte.

The worth of a function's memory on a device is the time that its loads would take in each second without it: the time
of a load times the rate of its calls, divided by the number of devices that have it. So further copies leave before
only ones. An only copy that a request waits for leaves last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.holdings import Holdings, WorkingSet

Waits = Callable[[WorkingSet], bool]


class Keep:
    """The worth of working sets on devices. Other objects are worth nothing."""

    def __init__(self, holdings: Holdings, estimates: Estimates) -> None:
        self._holdings = holdings
        self._estimates = estimates

    def loss(self, reads: WorkingSet, device: int, now_s: float) -> float:
        """Return the worth of what leaves a device for a working set."""
        needed_bytes = self._needed_bytes(reads, device)
        lost = 0.0
        for density, constants in self._by_worth(reads, device, now_s, (), None) if needed_bytes > 0 else ():
            lost += density * constants.nbytes
            needed_bytes -= constants.nbytes
            if needed_bytes <= 0:
                break
        return lost

    def brings(self, constants: WorkingSet, device: int, victims: Sequence[bytes], now_s: float) -> bool:
        """Return True if a working set that no device has fits in the place of these objects, and is worth more."""
        memory = self._holdings.memories[device]
        room_bytes = memory.free_bytes + sum(self._holdings.size(key) for key in victims)
        if memory.capacity_bytes is None or constants.missing_bytes(device) > room_bytes:
            return False
        worth = self._estimates.spared_s(constants.function, now_s) * constants.nbytes
        return not victims or self.loss(constants, device, now_s) < worth

    def victims(
        self, reads: WorkingSet, device: int, now_s: float, kept: Iterable[WorkingSet], waits: Waits
    ) -> tuple[bytes, ...]:
        """Return the objects that leave a device for a working set, those worth least first.

        Objects of the sets in `kept` stay. waits: whether a request waits that reads a working set.
        """
        needed_bytes = self._needed_bytes(reads, device)
        if needed_bytes <= 0:
            return ()
        memory, stay = self._holdings.memories[device], [reads, *kept]
        victims: dict[bytes, None] = {}
        sets = self._by_worth(reads, device, now_s, stay, waits)
        whole = {key for constants in memory.whole for key in constants.sizes}
        rest = (key for key in memory.oldest_first() if key not in whole) if len(whole) < len(memory.used) else ()
        for key in (*rest, *(key for _, constants in sets for key in constants.sizes)):
            if key in victims or key not in memory.used or any(key in each.sizes for each in stay):
                continue
            victims[key] = None
            needed_bytes -= self._holdings.size(key)
            if needed_bytes <= 0:
                break
        return tuple(victims)

    def _needed_bytes(self, reads: WorkingSet, device: int) -> int:
        """Return the bytes that have to leave a device for a working set; 0 if its size is not known."""
        memory = self._holdings.memories[device]
        return 0 if memory.capacity_bytes is None else reads.missing_bytes(device) - memory.free_bytes

    def _by_worth(
        self, reads: WorkingSet, device: int, now_s: float, stay: Sequence[WorkingSet], waits: Waits | None
    ) -> list[tuple[float, WorkingSet]]:
        """Return the working sets of functions on a device with their worth for each byte, the least first."""
        ranked: list[tuple[bool, float, int, WorkingSet]] = []
        for constants in self._holdings.memories[device].whole:
            if constants is reads or constants.constants is not constants or constants in stay:
                continue
            copies = len(constants.whole)
            last = waits is not None and copies == 1 and waits(constants)
            density = self._estimates.spared_s(constants.function, now_s) / copies
            ranked.append((last, density, len(ranked), constants))
        ranked.sort()
        return [(density, constants) for _, density, _, constants in ranked]
