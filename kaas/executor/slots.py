"""Hands out the slots of an executor, to those who ask in the order in which they asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.slot import Slot


@dataclass(slots=True, eq=False)
class _Asking:
    """Somebody who waits for a slot. number: for just that one; given: what he got."""

    number: int | None
    given: Slot | None = None


class Slots:
    """All of them: free, or in the hands of one thread each."""

    def __init__(self, slots: Sequence[Slot], gate: DeviceMonitor) -> None:
        self._gate = gate
        self._all = tuple(slots)
        self._free = {slot.number: slot for slot in slots}  # the last one is the one freed last
        self._asking: list[_Asking] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def take(self, number: int | None = None, task: str = "") -> Slot:
        """A slot, to be given back; waits for it.

        Args:
            number: which one; None: any, rather one that has the plan of this kTask.

        Raises:
            DeviceLost; ValueError: there is no such slot.
        """
        with self._gate.lock:
            slot = self._fitting(task) if number is None else self._free.get(number)
            if slot is not None:
                del self._free[slot.number]
                return slot
            if number is not None and not 0 <= number < len(self._all):
                raise ValueError(f"there is no slot {number}: they are {len(self._all)}, counted from 0")
            asking = _Asking(number)
            self._asking.append(asking)
            try:
                while asking.given is None:
                    self._gate.wait()
                return asking.given
            except BaseException:
                if asking.given is not None:
                    self._pass_on(asking.given)
                else:
                    self._asking.remove(asking)
                raise

    def _fitting(self, task: str) -> Slot | None:
        free = self._free.values()
        return next((slot for slot in reversed(free) if task in slot.replays), next(reversed(free), None))

    def give(self, slot: Slot) -> None:
        with self._gate.lock:
            self._pass_on(slot)

    def _pass_on(self, slot: Slot) -> None:
        for asking in self._asking:
            if asking.number is None or asking.number == slot.number:
                self._asking.remove(asking)
                asking.given = slot
                self._gate.notify()
                return
        self._free[slot.number] = slot
