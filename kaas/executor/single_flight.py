"""Objects that requests are fetching: who wants one that another request fetches gets what that one gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.inputs import Arriving


@dataclass(slots=True)
class _Fetch:
    data: Arriving | None = None


class SingleFlight:
    """Fetches under way, and what was fetched until the request that did it has made its reservation.

    Nobody waits for another's fetch while he has one of his own to do, so that two requests that want the same two
    objects never wait for each other.
    """

    def __init__(self, gate: DeviceMonitor) -> None:
        self._gate = gate
        self._under_way: dict[bytes, _Fetch] = {}

    def fetch(self, wanted: Mapping[bytes, Callable[[], Arriving]], own: dict[bytes, float]) -> dict[bytes, Arriving]:
        """All of these objects. own: gets the keys of those that were fetched here, and the seconds that took; the
        caller ends with `forget`.

        Raises:
            What fetching raises. Whoever waited for the same object then fetches it himself.
        """
        fetched: dict[bytes, Arriving] = {}
        while len(fetched) < len(wanted):
            with self._gate.lock:
                key = self._next(wanted, fetched)
                if key is None:
                    continue
                under_way = self._under_way[key] = _Fetch()
            began = perf_counter()
            try:
                fetched[key] = data = wanted[key]()
            except BaseException:
                with self._gate.lock:
                    self.forget([key])
                raise
            own[key] = perf_counter() - began
            with self._gate.lock:
                under_way.data = data
                self._gate.notify()
        return fetched

    def forget(self, keys: Iterable[bytes]) -> None:
        """Within the lock: these are in a tier now, or their request failed."""
        for key in keys:
            self._under_way.pop(key, None)
        self._gate.notify()

    def _next(self, wanted: Iterable[bytes], fetched: dict[bytes, Arriving]) -> bytes | None:
        """One that nobody fetches; None after others' fetches have been looked at, and waited for."""
        left = [key for key in wanted if key not in fetched]
        for key in left:
            if key not in self._under_way:
                return key
        others = {key: self._under_way[key] for key in left}
        if all(other.data is None for other in others.values()):
            self._gate.wait()
        # Those that fetched may have come to their end meanwhile: what they fetched is still here.
        fetched.update({key: other.data for key, other in others.items() if other.data is not None})
        return None
