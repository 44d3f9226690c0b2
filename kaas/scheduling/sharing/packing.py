"""Instances on devices, by best area fit: FaST-GShare's Algorithm 2, mended.

An instance goes into the free rectangle, of all devices, that it leaves least of, at the rectangle's bottom left. The
paper asks for rectangles *no larger* than the instance (`w_R <= w_F`, `h_R <= h_F`), in which only one of equal size
has room; meant is the opposite. Its keep-restructure policy hands a released rectangle back as it is, and joins it with
what is free beside it only past a number of rectangles. Until then an instance that would fit finds no room. Here the
lists with releases are made anew as well before an empty device is used, and before the answer is that there is none.

The free rectangles of all devices are in one list of sizes, by area, each with the places where it is free. A search
passes the sizes that have the area and not the shape, and reads no list of a device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from kaas.scheduling.sharing.rectangles import TIME_UNITS, DeviceExtent, Rectangle, Surface

Spots = list[tuple[int, Rectangle]]
"""Devices and free rectangles of one size, in order."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of an instance.

    Fields:
        device: its index. rectangle: in units of that device. extent: of that device.
    """

    device: int
    rectangle: Rectangle
    extent: DeviceExtent

    @property
    def sms(self) -> float:
        """The fraction of the SMs that is granted: as asked, rounded up to partitions."""
        return self.rectangle.height / self.extent.sms

    @property
    def quota(self) -> float:
        """The fraction of the time that is granted."""
        return self.rectangle.width / TIME_UNITS


class DevicePacking:
    """The instances of all devices.

    Fields:
        spots: the place of each instance, by its key.
    """

    def __init__(self, devices: Mapping[int, DeviceExtent] | None = None) -> None:
        self.spots: dict[Hashable, Spot] = {}
        self._extents: dict[int, DeviceExtent] = {}
        self._surfaces: dict[int, Surface] = {}
        self._sizes: dict[DeviceExtent, FreeSizes] = {}
        self._stale: dict[int, None] = {}
        for device, extent in (devices or {}).items():
            self.add_device(device, extent)

    # --- devices

    def add_device(self, device: int, extent: DeviceExtent) -> None:
        """Add an empty device, by an index that no device here has."""
        assert device not in self._extents, device
        self._extents[device] = extent
        self._surfaces[device] = surface = Surface(TIME_UNITS, extent.sms, extent.slots)
        self._sizes.setdefault(extent, FreeSizes()).change(device, (), surface.open)

    def remove_device(self, device: int) -> list[Hashable]:
        """Forget a device, and return the keys of the instances that are lost with it."""
        self._sizes[self._extents.pop(device)].change(device, self._surfaces.pop(device).open, ())
        self._stale.pop(device, None)
        lost = [key for key, spot in self.spots.items() if spot.device == device]
        for key in lost:
            del self.spots[key]
        return lost

    def used(self) -> int:
        """Return the number of devices that have an instance."""
        return sum(1 for surface in self._surfaces.values() if surface.taken)

    # --- instances

    def place(self, key: Hashable, sms: float, quota: float, device: int | None = None) -> Spot | None:
        """Find room for an instance, and take it. Return None if there is none.

        device: its place; None: any.

        Raises:
            InvalidConfig: a share that is not above 0 and at most 1.
        """
        assert key not in self.spots, key
        if device is not None:
            return self._place_on(device, key, sms, quota)
        found = self._best_fit(sms, quota)
        if self._stale and (found is None or not self._surfaces[found[1]].taken):
            self._rebuild_stale(sms, quota)
            found = self._best_fit(sms, quota)
        if found is None:
            return None
        _, device, room = found
        return self._take(device, room, key, sms, quota)

    def place_all(self, shares: Mapping[Hashable, tuple[float, float]]) -> dict[Hashable, Spot | None]:
        """Place several instances, those of largest area first, and return their places.

        Args:
            shares: the fractions of SMs and of time, by key.
        """
        order = sorted(shares, key=lambda key: (shares[key][0] * shares[key][1], max(shares[key])), reverse=True)
        placed = {key: self.place(key, *shares[key]) for key in order}
        return {key: placed[key] for key in shares}

    def release(self, key: Hashable) -> None:
        """Free an instance's place."""
        spot = self.spots.pop(key)
        surface = self._surfaces[spot.device]
        before = surface.open
        surface.release(spot.rectangle)
        self._changed(spot.device, before)

    def resize(self, key: Hashable, sms: float, quota: float) -> Spot | None:
        """Change the share of an instance on its device. Return None, and change nothing, if it has no room there.

        A smaller one keeps its bottom left; a larger one takes the best fit of the device. Both hold at once: nothing
        moves but numbers.

        Raises:
            InvalidConfig: a share that is not above 0 and at most 1.
        """
        spot = self.spots[key]
        old, surface = spot.rectangle, self._surfaces[spot.device]
        width, height = spot.extent.size(sms, quota)
        if width * height > surface.free_area + old.area:
            return None
        before = surface.open
        surface.release(old)
        room: Rectangle | None = old
        if width > old.width or height > old.height:
            surface.rebuild()
            room = surface.best_fit(width, height)
        taken = old if room is None else _bottom_left(room, width, height)
        surface.take(taken)
        self._changed(spot.device, before)
        if room is None:
            return None
        self.spots[key] = resized = Spot(spot.device, taken, spot.extent)
        return resized

    # --- inside

    def _place_on(self, device: int, key: Hashable, sms: float, quota: float) -> Spot | None:
        surface, before = self._surfaces[device], self._surfaces[device].open
        surface.rebuild()
        self._changed(device, before)
        room = surface.best_fit(*self._extents[device].size(sms, quota))
        return None if room is None else self._take(device, room, key, sms, quota)

    def _take(self, device: int, room: Rectangle, key: Hashable, sms: float, quota: float) -> Spot:
        """Take a free rectangle's bottom left for an instance."""
        surface, extent = self._surfaces[device], self._extents[device]
        before = surface.open
        taken = _bottom_left(room, *extent.size(sms, quota))
        surface.take(taken)
        self._changed(device, before)
        self.spots[key] = spot = Spot(device, taken, extent)
        return spot

    def _best_fit(self, sms: float, quota: float) -> tuple[float, int, Rectangle] | None:
        """Return the part of a device that a share leaves of its best fit, the device, and the rectangle there."""
        fits = []
        for extent, sizes in self._sizes.items():
            width, height = extent.size(sms, quota)
            found = sizes.find(width, height)
            if found is not None:
                fits.append(((found[1].area - width * height) / (TIME_UNITS * extent.sms), *found))
        return min(fits, default=None)

    def _changed(self, device: int, before: list[Rectangle]) -> None:
        """Take in that the free rectangles of a device have changed."""
        surface = self._surfaces[device]
        self._sizes[self._extents[device]].change(device, before, surface.open)
        if surface.stale:
            self._stale[device] = None
        else:
            self._stale.pop(device, None)

    def _rebuild_stale(self, sms: float, quota: float) -> None:
        """Make the lists with releases anew, of devices that are empty enough for a share."""
        for device in [*self._stale]:
            surface = self._surfaces[device]
            width, height = self._extents[device].size(sms, quota)
            if surface.free_area >= width * height:
                before = surface.open
                surface.rebuild()
                self._changed(device, before)


class FreeSizes:
    """The free rectangles of devices of one extent, by size."""

    def __init__(self) -> None:
        self._sizes: list[tuple[int, int, int]] = []  # area, width, height; ascending
        self._spots: dict[tuple[int, int, int], Spots] = {}

    def change(self, device: int, before: Iterable[Rectangle], after: Iterable[Rectangle]) -> None:
        """Take in that a device has other free rectangles than before."""
        old, new = {*before}, {*after}
        for rectangle in old - new:
            size = _size(rectangle)
            spots = self._spots[size]
            del spots[bisect_left(spots, (device, rectangle))]
            if not spots:
                del self._spots[size]
                del self._sizes[bisect_left(self._sizes, size)]
        for rectangle in new - old:
            size = _size(rectangle)
            if size not in self._spots:
                self._spots[size] = []
                insort(self._sizes, size)
            insort(self._spots[size], (device, rectangle))

    def find(self, width: int, height: int) -> tuple[int, Rectangle] | None:
        """Return the device and the rectangle of least area that holds a size; None if there is none.

        Of several of one area: the narrowest, then the first device.
        """
        first = bisect_left(self._sizes, (width * height,))
        for size in islice(self._sizes, first, None):
            if size[1] >= width and size[2] >= height:
                return self._spots[size][0]
        return None


def _size(rectangle: Rectangle) -> tuple[int, int, int]:
    left, bottom, right, top = rectangle
    return (right - left) * (top - bottom), right - left, top - bottom


def _bottom_left(room: Rectangle, width: int, height: int) -> Rectangle:
    return Rectangle(room.left, room.bottom, room.left + width, room.bottom + height)
