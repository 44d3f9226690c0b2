"""Devices at work in virtual time: dispatched requests load and run, and memory is prefetched and evicted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kaas.scheduling.decisions import Evict, EvictTo, Prefetch
from kaas.scheduling.events import Event, Ordered, Outcome, Residency
from kaas.scheduling.simulation.clock import Clock, Turn, seconds
from kaas.scheduling.simulation.devices import SimulatedDevice, SimulatedFunction, SimulatedRequest, SimulatedWorker
from kaas.scheduling.simulation.figures import RunFigures
from kaas.scheduling.simulation.simulated import Start
from kaas.scheduling.simulation.simulated_memory import FunctionPlace, SimulatedMemory

LOADED = -1
"""The place of the end of a load among the completions of a device: it comes first."""


@dataclass(slots=True, eq=False)
class _OpenPrefetch:
    """A prefetch that loads one function after the other.

    Fields:
        memory: of the device, as long as its process lives. left: the functions to load, and whether from the store.
    """

    worker: SimulatedWorker
    memory: SimulatedMemory
    order: int
    began_ps: int
    left: deque[tuple[SimulatedFunction, bool]]
    loaded: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    refused: tuple[bytes, ...]


class Execution:
    """Carries out what a policy decides for devices.

    Args:
        copies: counts the devices that hold each function. watched: the policy asks for utilisation.
        tell: sends an event to the policy. ended: takes in that a request has left its device, and tells the policy.
    """

    def __init__(
        self,
        clock: Clock,
        functions: Mapping[str, SimulatedFunction],
        copies: Counter[bytes],
        figures: RunFigures,
        *,
        watched: bool,
        tell: Callable[[Event], None],
        ended: Callable[[SimulatedRequest, Outcome], None],
    ) -> None:
        self._clock = clock
        self._functions = functions
        self._copies = copies
        self._figures = figures
        self._watched = watched
        self._tell = tell
        self._ended = ended

    # --- requests

    def enter(self, device: SimulatedDevice) -> None:
        """Begin the requests dispatched to a device, in their order, while the memory of running ones leaves room."""
        entering, memory = device.entering, device.memory
        while entering:
            request = entering[0]
            function = request.function
            place = memory.place(function.key, function.nbytes, request.victims)
            if place is None:
                break
            entering.popleft()
            self._begin(request, device, place)

    def _begin(self, request: SimulatedRequest, device: SimulatedDevice, place: FunctionPlace) -> None:
        function, memory, now_ps = request.function, device.memory, self._clock.now_ps
        worker, key = request.at, function.key
        request.place, request.began_ps = place, now_ps
        memory.begin(key)
        request.ran_ps = device.run_ps(request)
        device.running[request.arrival.request] = request
        how: Start = "hit"
        if place.loaded:
            how = "fetch" if place.fetched and function.fetch_ps else "load"
        elsewhere = place.loaded and self._copies[key] > 1
        if worker.cold_ps is not None:
            how, elsewhere = "cold", False
            request.started_ps, worker.cold_ps = worker.cold_ps, None
        self._figures.began(
            request.index,
            device.index,
            self._clock.now_s,
            how,
            place.evicted,
            elsewhere=elsewhere,
            promised=request.promised,
        )
        if place.loaded:
            if device.link is None:
                request.loaded_ps = function.load_ps + (function.fetch_ps if place.fetched else 0)
                memory.ready_ps[key] = now_ps + request.loaded_ps
            else:
                self._load(device, function, place.fetched, self._loaded)
        ready_ps = memory.ready_ps[key]
        if ready_ps is None:
            device.waiting.setdefault(key, []).append(request)
        else:
            self._run(request, device, ready_ps if ready_ps > now_ps else now_ps)

    def _run(self, request: SimulatedRequest, device: SimulatedDevice, ready_ps: int) -> None:
        """Let a request run from a time on, at which its function's memory is there."""
        ends_ps = request.ready_ps = ready_ps
        ends_ps += request.ran_ps
        if self._watched:
            device.runs.append((ready_ps, ends_ps))
        order = (device.index, request.slot)
        self._clock.at(ends_ps, Turn.COMPLETION, order, self._complete, request)

    def _complete(self, request: SimulatedRequest) -> None:
        if request.gone:
            return
        worker, function, arrival = request.at, request.function, request.arrival
        device = worker.device
        memory = device.memory
        outcome = Outcome.ABANDONED
        if not request.replied:
            request.replied, outcome = True, Outcome.SUCCEEDED
            self._figures.completed(arrival.client, self._clock.now_ps - request.arrived_ps)
        del device.running[arrival.request]
        device.busy_ps += request.loaded_ps + request.ran_ps
        memory.end(function.key)
        place = request.place
        if place is not None and place.loaded:
            self._tell(self._moved(worker, memory, (function.key,), place.evicted))
        self._ended(request, outcome)
        if device.entering:
            self.enter(device)

    def _moved(
        self, worker: SimulatedWorker, memory: SimulatedMemory, loaded: tuple[bytes, ...], evicted: tuple[bytes, ...]
    ) -> Residency:
        """Return the event of objects that moved."""
        hosted = tuple(key for key in evicted if key in memory.host) if evicted else ()
        return Residency(self._clock.now_s, worker.id, loaded, evicted, hosted)

    # --- loads that end at a time which is not known when they begin

    def _load(
        self,
        device: SimulatedDevice,
        function: SimulatedFunction,
        fetched: bool,
        then: Callable[[SimulatedDevice, SimulatedFunction], None],
    ) -> None:
        """Begin to bring a function's memory to a device: a fetch if it must be, then a load over the device's link.

        The load takes at least the function's `load_ps`, and until its last byte has come. `then` is called at its end,
        unless the device's process ends before.
        """
        clock, memory, link = self._clock, device.memory, device.link

        def begin(_: None) -> None:
            if device.memory is memory:
                least_ps = clock.now_ps + function.load_ps
                if link is None:
                    end_no_earlier(least_ps)
                else:
                    link.load(device.index, function.nbytes, lambda _: end_no_earlier(least_ps))

        def end_no_earlier(least_ps: int) -> None:
            clock.at(max(least_ps, clock.now_ps), Turn.COMPLETION, (device.index, LOADED), end, None)

        def end(_: None) -> None:
            if device.memory is memory:
                then(device, function)

        if fetched and function.fetch_ps:
            clock.at(clock.now_ps + function.fetch_ps, Turn.COMPLETION, (device.index, LOADED), begin, None)
        else:
            begin(None)

    def _loaded(self, device: SimulatedDevice, function: SimulatedFunction) -> None:
        """Take in that a function's memory is there: requests that have waited for it run."""
        now_ps = device.memory.ready_ps[function.key] = self._clock.now_ps
        for request in device.waiting.pop(function.key, ()):
            if request.place is not None and request.place.loaded:
                request.loaded_ps = now_ps - request.began_ps
            self._run(request, device, now_ps)

    # --- the cache

    def prefetch(self, worker: SimulatedWorker, decision: Prefetch) -> None:
        """Load the memory of all functions, or of none, one after the other and while others run."""
        device, memory = worker.device, worker.device.memory
        named = {key: self._functions.get(key.decode(errors="replace")) for key in decision.keys}
        functions = {key: function for key, function in named.items() if function is not None}
        evicted = memory.make_room({key: each.nbytes for key, each in functions.items()}, decision.victims)
        refused = tuple(named) if evicted is None else tuple(key for key in named if key not in functions)
        left: deque[tuple[SimulatedFunction, bool]] = deque()
        for key, function in functions.items() if evicted is not None else ():
            place = None if key in memory.ready_ps else memory.place(key, function.nbytes)
            if place is not None:
                memory.begin(key)
                left.append((function, place.fetched))
        loaded = tuple(function.key for function, _ in left)
        made = _OpenPrefetch(worker, memory, decision.order, self._clock.now_ps, left, loaded, evicted or (), refused)
        if left:
            self._prefetch_next(made)
        else:
            self._clock.at(self._clock.now_ps, Turn.COMPLETION, (device.index, device.slots), self._prefetched, made)

    def _prefetch_next(self, prefetch: _OpenPrefetch) -> None:
        def then(device: SimulatedDevice, function: SimulatedFunction) -> None:
            self._loaded(device, function)
            if prefetch.left:
                self._prefetch_next(prefetch)
            else:
                self._prefetched(prefetch)

        function, fetched = prefetch.left.popleft()
        self._load(prefetch.worker.device, function, fetched, then)

    def _prefetched(self, prefetch: _OpenPrefetch) -> None:
        """Tell the policy what came of a prefetch. Until then its functions stay."""
        worker, memory = prefetch.worker, prefetch.memory
        device = worker.device
        for key in prefetch.loaded:
            memory.end(key)
        took_ps = self._clock.now_ps - prefetch.began_ps
        if device.workers.get(worker.id) is not worker:
            return
        if prefetch.loaded or prefetch.evicted:
            self._tell(self._moved(worker, memory, prefetch.loaded, prefetch.evicted))
        now_s, took_s = self._clock.now_s, seconds(took_ps)
        self._tell(Ordered(now_s, worker.id, prefetch.order, prefetch.loaded, prefetch.refused, took_s))
        self.enter(device)

    def evict(self, worker: SimulatedWorker, decision: Evict) -> list[Event]:
        """Take functions off a device, and return the events of it. Those that host memory lacks cannot go there."""
        memory, now_s = worker.device.memory, self._clock.now_s
        evicted = memory.idle(decision.keys)
        if decision.to is EvictTo.HOST:
            evicted = tuple(key for key in evicted if key in memory.host)
        else:
            memory.host.drop((*evicted, *(key for key in decision.keys if key not in memory.ready_ps)))
        memory.drop(evicted)
        refused = tuple(key for key in decision.keys if key not in evicted)
        answer = Ordered(now_s, worker.id, decision.order, evicted, refused)
        return [self._moved(worker, memory, (), evicted), answer] if evicted else [answer]
