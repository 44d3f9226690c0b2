"""Fetches under way. A request that wants an object that another request fetches gets the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.objects import FetchedObject


@dataclass(slots=True)
class _Fetch:
    """A fetch under way. data: the object, once it is there."""

    data: FetchedObject | None = None


class SingleFlight:
    """The fetches under way, and the fetched objects until the fetching request has made its reservation.

    No request waits for another's fetch while it has an object of its own to fetch. Two requests that want the same
    two objects thus never wait for each other.
    """

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._under_way: dict[bytes, _Fetch] = {}

    def fetch(
        self, wanted: Mapping[bytes, Callable[[], FetchedObject]], own: dict[bytes, float]
    ) -> dict[bytes, FetchedObject]:
        """Return all of these objects, of which some may come from other requests' fetches.

        `own` gets the keys of the objects that this call fetched, with the seconds of each fetch. The caller must call
        `forget` for them.

        Raises:
            The error of a fetch. A request that waited for the same object then fetches it itself.
        """
        fetched: dict[bytes, FetchedObject] = {}
        while len(fetched) < len(wanted):
            with self._monitor.lock:
                key = self._next(wanted, fetched)
                if key is None:
                    continue
                under_way = self._under_way[key] = _Fetch()
            began = perf_counter()
            try:
                fetched[key] = data = wanted[key]()
            except BaseException:
                with self._monitor.lock:
                    self.forget([key])
                raise
            own[key] = perf_counter() - began
            with self._monitor.lock:
                under_way.data = data
                self._monitor.notify()
        return fetched

    def forget(self, keys: Iterable[bytes]) -> None:
        """Forget objects that are in a tier now, or whose request failed. Needs the lock."""
        for key in keys:
            self._under_way.pop(key, None)
        self._monitor.notify()

    def _next(self, wanted: Iterable[bytes], fetched: dict[bytes, FetchedObject]) -> bytes | None:
        """Return a key that no request fetches; None after a wait for other requests' fetches."""
        left = [key for key in wanted if key not in fetched]
        for key in left:
            if key not in self._under_way:
                return key
        others = {key: self._under_way[key] for key in left}
        if all(other.data is None for other in others.values()):
            self._monitor.wait()
        # The fetching requests may have ended meanwhile; their objects are still in `others`.
        fetched.update({key: other.data for key, other in others.items() if other.data is not None})
        return None
