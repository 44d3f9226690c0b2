"""One device as a rectangle, time wide and SMs high, and the maximal rectangles of it that are free.

This is the restructuring of FaST-GShare's Algorithm 2, which is that of Jylänki's MaxRects. The paper's listing adds
the pieces of a rectangle that was cut and keeps the rectangle, so space that is taken stays free in the list. It also
removes each rectangle that lies in another one *or in itself*, so no rectangle is left. Here the pieces take the cut
rectangle's place, and of equal rectangles one stays.

Positions are whole units, so sums are exact. They plan what fits together: a position is no moment in time, nor a
certain SM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from kaas.errors import InvalidConfig

TIME_UNITS = 1000
"""The width of a device: a quota of 0.4 is 400 wide."""
REBUILD_ABOVE = 32
"""Free rectangles of a device with which a release rebuilds the list."""


class Rectangle(NamedTuple):
    """A part of a device, in units: time from left to right, SMs from bottom to top."""

    left: int
    bottom: int
    right: int
    top: int

    @property
    def width(self) -> int:
        """Units of time."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Units of SMs."""
        return self.top - self.bottom

    @property
    def area(self) -> int:
        """Width times height."""
        return (self.right - self.left) * (self.top - self.bottom)


@dataclass(frozen=True, slots=True)
class DeviceExtent:
    """The size of a device, for shares.

    Fields:
        sms: its SMs, or any other number of units that all of them stand for.
        step: the least partition, of which all others but the whole device are multiples: 8 SMs on compute capability
            9.0.
        slots: requests that run at a time, which the times of all shares together do not exceed; None: as many as fit.

    Raises:
        InvalidConfig: fewer than one SM, or a step that is not from 1 to `sms`.
    """

    sms: int = 1000
    step: int = 1
    slots: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.step <= self.sms:
            raise InvalidConfig(f"partitions of {self.step} SMs on a device of {self.sms}: at least 1 and at most all")

    def size(self, sms: float, quota: float) -> tuple[int, int]:
        """Return the units of time and of SMs of a share, both rounded up to what a device can grant.

        Args:
            sms: the fraction of the SMs.
            quota: the fraction of the time.

        Raises:
            InvalidConfig: a fraction that is not above 0 and at most 1.
        """
        if not (0 < sms <= 1 and 0 < quota <= 1):
            raise InvalidConfig(f"a share of {sms:g} of the SMs and {quota:g} of the time: both are above 0, at most 1")
        return _units(quota, TIME_UNITS), min(_units(sms, self.sms, self.step), self.sms)


def _units(fraction: float, units: int, step: int = 1) -> int:
    """Return the least multiple of a step that holds a fraction. Digits that only floating point adds do not count."""
    return max(ceil(round(fraction * units / step, 6)), 1) * step


class Surface:
    """The taken and the free parts of one device.

    Fields:
        whole: the device. free: rectangles whose union is exactly what is free, none inside another; they overlap.
        taken: the rectangles of instances, which never overlap. free_area: the area that they leave.
        time_left: units of time that its slots have beside them.
        stale: whether a release has come since the list was made anew: then `free` may lack a maximal rectangle.
    """

    def __init__(self, width: int, height: int, slots: int | None = None) -> None:
        self.whole = Rectangle(0, 0, width, height)
        self.time_left = width * (height if slots is None else slots)
        self.free: list[Rectangle] = [self.whole]
        self.taken: dict[Rectangle, None] = {}
        self.free_area = self.whole.area
        self.stale = False
        self._rebuild_above = REBUILD_ABOVE

    @property
    def open(self) -> list[Rectangle]:
        """The free rectangles as far as slots have time for them."""
        if self.time_left >= self.whole.width:
            return self.free
        cut_off = [each._replace(right=min(each.right, each.left + self.time_left)) for each in self.free]
        return [*dict.fromkeys(cut_off)] if self.time_left else []

    def best_fit(self, width: int, height: int) -> Rectangle | None:
        """Return the free rectangle of least area that holds this size; None if there is none."""
        fitting = [each for each in self.open if each.width >= width and each.height >= height]
        return min(fitting, key=lambda each: (each.area, each.width, each), default=None)

    def take(self, rectangle: Rectangle) -> None:
        """Take a rectangle, which lies within a free one."""
        self.taken[rectangle] = None
        self.free_area -= rectangle.area
        self.time_left -= rectangle.width
        self.free = cut(self.free, rectangle)

    def release(self, rectangle: Rectangle) -> None:
        """Give a taken rectangle back, as it is: the next instance of the same size goes there.

        Past a number of free rectangles, REBUILD_ABOVE or twice those of the last rebuilding, the list is made anew.
        """
        del self.taken[rectangle]
        self.free_area += rectangle.area
        self.time_left += rectangle.width
        self.free = [*self.free, rectangle]
        self.stale = True
        if len(self.free) > self._rebuild_above:
            self.rebuild()

    def rebuild(self) -> None:
        """Make the list anew from the whole device and what is taken: now every maximal rectangle is in it."""
        free = [self.whole]
        for rectangle in sorted(self.taken):
            free = cut(free, rectangle)
        self.free, self.stale = free, False
        self._rebuild_above = max(REBUILD_ABOVE, 2 * len(free))


def cut(free: Iterable[Rectangle], taken: Rectangle) -> list[Rectangle]:
    """Return free rectangles without a part that is taken: each that it cuts is replaced by up to four pieces."""
    left, bottom, right, top = taken
    kept: list[Rectangle] = []
    pieces: dict[Rectangle, None] = {}
    for each in free:
        its_left, its_bottom, its_right, its_top = each
        if its_left >= right or left >= its_right or its_bottom >= top or bottom >= its_top:
            kept.append(each)
            continue
        if its_left < left:
            pieces[Rectangle(its_left, its_bottom, left, its_top)] = None
        if its_bottom < bottom:
            pieces[Rectangle(its_left, its_bottom, its_right, bottom)] = None
        if right < its_right:
            pieces[Rectangle(right, its_bottom, its_right, its_top)] = None
        if top < its_top:
            pieces[Rectangle(its_left, top, its_right, its_top)] = None
    # a kept one lies in no piece, since a piece is a part of a rectangle that the kept one did not lie in
    return kept + [each for each in pieces if not _inside_another(each, kept) and not _inside_another(each, pieces)]


def _inside_another(one: Rectangle, others: Iterable[Rectangle]) -> bool:
    left, bottom, right, top = one
    for other in others:
        if other[0] <= left and other[1] <= bottom and right <= other[2] and top <= other[3] and other != one:
            return True
    return False
