"""Fetches under way: a request whose object another request fetches gets that request's object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.inputs import FetchedObject


@dataclass(slots=True)
class _Fetch:
    data: FetchedObject | None = None


class SingleFlight:
    """The fetches under way, and the fetched objects until the fetching request has made its reservation.

    No request waits for another's fetch while it has one of its own to do, so two requests that want the same two
    objects never wait for each other.
    """

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._under_way: dict[bytes, _Fetch] = {}

    def fetch(
        self, wanted: Mapping[bytes, Callable[[], FetchedObject]], own: dict[bytes, float]
    ) -> dict[bytes, FetchedObject]:
        """Return all of these objects.

        `own` gets the keys of the objects that were fetched here, and the seconds that took; the caller ends with
        `forget`.

        Raises:
            What fetching raises. A request that waited for the same object then fetches it itself.
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
        """One that no request fetches; None after others' fetches have been looked at, and waited for."""
        left = [key for key in wanted if key not in fetched]
        for key in left:
            if key not in self._under_way:
                return key
        others = {key: self._under_way[key] for key in left}
        if all(other.data is None for other in others.values()):
            self._monitor.wait()
        # Those that fetched may have come to their end meanwhile: what they fetched is still here.
        fetched.update({key: other.data for key, other in others.items() if other.data is not None})
        return None
