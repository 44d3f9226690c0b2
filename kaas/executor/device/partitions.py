"""Parts of a device's streaming multiprocessors for single requests: green contexts, made once and used again.

A device is divided into its least partitions, and a request's partition is made of some of these. The kernels of a
graph carry the partition's context. Memory, code and streams are those of the whole device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from cuda.bindings import driver

from kaas.executor.device.driver_errors import call

MOST_PARTITIONS = 256
"""Then requests get partitions that are made, since each takes memory of the device for as long as it is open."""
MOST_SHARES = 256
"""Shares whose last SMs are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class SmPartition:
    """Some SMs of a device. context: of the kernels that run on them."""

    sms: int
    context: Any
    green: Any


@dataclass(frozen=True, slots=True)
class _Division:
    """The SMs of a device in its least partitions, of `step` SMs each. groups: a resource for each."""

    sms: int
    step: int
    groups: Sequence[Any]


class Partitions:
    """The partitions of one device. Any thread may call it, inside the device's context.

    Args:
        device: the driver's handle.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._lock = Lock()
        self._made: dict[frozenset[int], SmPartition] = {}
        self._held: dict[str, Counter[int]] = {}  # by share, how many requests hold each group
        self._last: dict[str, frozenset[int]] = {}

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of SMs, and of those in the least partition; (1, 1) of a device that cannot be divided."""
        division = self._division
        return (division.sms, division.step) if len(division.groups) > 1 else (1, 1)

    @cached_property
    def _division(self) -> _Division:
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        try:
            status, whole = driver.cuDeviceGetDevResource(self._device, kind)
            if status:
                return _Division(1, 1, ())
            status, groups, count, _ = driver.cuDevSmResourceSplitByCount(0, whole, 0, 1)
            if status or not count:
                return _Division(1, 1, ())
            status, groups, count, _ = driver.cuDevSmResourceSplitByCount(count, whole, 0, 1)
        except RuntimeError:  # a driver without these functions
            return _Division(1, 1, ())
        return _Division(1, 1, ()) if status else _Division(whole.sm.smCount, groups[0].sm.smCount, groups[:count])

    @contextmanager
    def taken(self, share: str, sms: int) -> Iterator[SmPartition | None]:
        """Let a request of a share have so many SMs; None: all of them.

        Requests of one share at a time have the same SMs, as far as these are enough; those of others have none of
        them, as long as all are given so many that each has SMs of its own, and not too many partitions are made.
        """
        if not 0 < sms < self.sizes[0]:
            yield None
            return
        with self._lock:
            groups = self._known(share, self._choose(share, -(-sms // self._division.step)))
            partition = self._made.get(groups) or self._make(groups)
            held = self._held.setdefault(share, Counter())
            held.update(groups)
        try:
            yield partition
        finally:
            with self._lock:
                held.subtract(groups)
                if not +held:
                    if len(self._last) >= MOST_SHARES:
                        self._last.clear()
                    self._last[share] = groups
                    del self._held[share]

    def _choose(self, share: str, count: int) -> frozenset[int]:
        """Return the groups for a request: those that the share has now or had last, else free ones side by side."""
        own = +self._held.get(share, Counter())
        others = Counter[int]()
        for other, held in self._held.items():
            if other != share:
                others += held
        every = range(len(self._division.groups))
        if not own and len(last := self._last.get(share, frozenset())) == count and not others.keys() & last:
            return last
        free = [group for group in every if group not in others and group not in own]
        row = next((group for group in free if set(range(group, group + count)) <= {*free}), None)
        if not own and row is not None:
            return frozenset(range(row, row + count))
        return frozenset([*sorted(own), *free, *sorted(others, key=others.__getitem__)][:count])

    def _known(self, share: str, wanted: frozenset[int]) -> frozenset[int]:
        """Return the groups wanted, or as many of a partition that is made if too many are: few of other shares."""
        same = [made for made in self._made if len(made) == len(wanted)] if len(self._made) >= MOST_PARTITIONS else []
        if not same or wanted in self._made:
            return wanted
        others = Counter(group for other, held in self._held.items() if other != share for group in held.elements())
        return min(same, key=lambda made: sum(others[group] for group in made))

    def _make(self, groups: frozenset[int]) -> SmPartition:
        resources = [self._division.groups[group] for group in sorted(groups)]
        described = call(driver.cuDevResourceGenerateDesc, resources, len(resources))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        green = call(driver.cuGreenCtxCreate, described, self._device, flags)
        made = SmPartition(len(groups) * self._division.step, call(driver.cuCtxFromGreenCtx, green), green)
        self._made[groups] = made
        return made

    def close(self) -> None:
        """Destroy the contexts. No graph may have them any more."""
        while self._made:
            call(driver.cuGreenCtxDestroy, self._made.popitem()[1].green)
