"""Hands out the slots of an executor, to those who ask in the order in which they asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kaas.executor.gate import Gate
from kaas.executor.slot import Slot


@dataclass(slots=True, eq=False)
class _Asking:
    """Somebody who waits for a slot. number: for just that one; given: what he got."""

    number: int | None
    given: Slot | None = None


class Slots:
    """All of them: free, or in the hands of one thread each."""

    def __init__(self, slots: Sequence[Slot], gate: Gate) -> None:
        self._gate = gate
        self._all = tuple(slots)
        self._free = list(slots)
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
        if number is not None and not 0 <= number < len(self._all):
            raise ValueError(f"there is no slot {number}: they are {len(self._all)}, counted from 0")
        with self._gate.lock:
            self._gate.check()
            fitting = self._free if number is None else [slot for slot in self._free if slot.number == number]
            if fitting:
                slot = fitting[-1]
                if task not in slot.replays:
                    slot = next((slot for slot in fitting if task in slot.replays), slot)
                self._free.remove(slot)
                return slot
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
        self._free.append(slot)
