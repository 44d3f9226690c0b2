"""The executors of several clients on one device, as `ProcessIsolation` knows them."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from kaas.scheduling.events import Ordered, RequestArrived
from kaas.scheduling.policies.reclaiming import TURN


@dataclass(slots=True, eq=False)
class ClientExecutor:
    """An executor from its start to its end.

    Fields:
        client: "" of a spare one. began_s: when its start began. given_s: when it was given to its client. unused_s:
            when its last request ended. has_share: its client's last request had a share of the device.
        running: its requests, with their slots. keys: the objects that it has on the device. parts: the numbers of the
            orders that it has not answered. awaited: the requests that it has started for, until one of them runs on it
            or all have gone elsewhere.
    """

    worker: int
    began_s: float
    client: str = ""
    ready: bool = False
    stopping: bool = False
    given_s: float = 0.0
    unused_s: float = 0.0
    running: dict[int, int] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)
    has_share: bool = False
    parts: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)

    def own(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the objects that it has."""
        return tuple([key for key in keys if key in self.keys])


@dataclass(slots=True, eq=False)
class DeviceExecutors:
    """A device and its executors.

    Fields:
        most: clients whose executors may be on it at a time.
        shared: the executor that the policy inside sees, None if it sees none. seen: that one is ready. closing: why
            it ends, once it has no executors; "" if it does not. failed: the last executor did not start.
        executors: by worker. waiting: requests that wait for an executor. holders: for each object, how many executors
            have it.
        start_s: what the quickest start took. turn_ends_s: when another executor that is used may end for a client
            without one. wake_s: when the policy is woken, since an executor may end then.
    """

    index: int
    most: int
    shared: int | None = None
    seen: bool = False
    closing: str = ""
    failed: bool = False
    executors: dict[int, ClientExecutor] = field(default_factory=dict)
    waiting: dict[int, RequestArrived] = field(default_factory=dict)
    holders: dict[bytes, int] = field(default_factory=dict)
    start_s: float = math.inf
    turn_ends_s: float = 0.0
    wake_s: float = 0.0

    def executor_of(self, client: str) -> ClientExecutor | None:
        """Return the executor of a client, or the spare one for ""."""
        for each in self.executors.values():
            if each.client == client and not each.stopping:
                return each
        return None

    def take(self, request: RequestArrived, now_s: float) -> ClientExecutor | None:
        """Give the spare executor to a request's client, if the device has room for one more."""
        spare = self.executor_of("")
        if spare is None or len(self.given()) >= self.most:
            return None
        spare.client, spare.has_share, spare.given_s, spare.unused_s = request.client, bool(request.share), now_s, now_s
        return spare

    def without(self) -> list[RequestArrived]:
        """Return the requests that wait here and whose clients have no executor."""
        return [each for each in self.waiting.values() if self.executor_of(each.client) is None]

    def given(self) -> list[ClientExecutor]:
        """Return the executors that have clients, and memory."""
        return [each for each in self.executors.values() if each.client]

    def idle(self) -> list[ClientExecutor]:
        """Return the executors that run nothing, and that no request has started."""
        needed = set() if self.closing else {each.client for each in self.waiting.values()}
        unused = [each for each in self.executors.values() if not (each.running or each.stopping)]
        unused = [each for each in unused if self.closing or not each.awaited]
        return [each for each in unused if each.client not in needed]

    def awaits_end(self) -> bool:
        """Return True if a spare executor is ready to serve a client as soon as another executor ends."""
        spare = self.executor_of("")
        full = len(self.given()) >= self.most and not any(each.stopping for each in self.executors.values())
        return full and spare is not None and spare.ready

    def gives_way(self, now_s: float, busy: Container[str]) -> ClientExecutor | None:
        """Return the executor that ends now for a client without one, or None if none may.

        One may end whose client has sent nothing for as long as a start takes. Of the others one may end in `TURN`
        starts, the one that was given to its client longest ago and at least as long ago, also if it has to finish
        requests first: so no client keeps its place for ever, and starts take a quarter of a processor at most. Clients
        with shares give nothing up for it, as long as others are there; for a client with a share one of several others
        ends at once. The last one has its turn, so that clients without shares have a place.

        Args:
            now_s: the time.
            busy: the clients that have requests, wherever these wait.
        """
        unused = [each for each in self.idle() if each.client and self._unused_until_s(each, busy) <= now_s]
        if unused:
            return min(unused, key=lambda each: each.unused_s)
        shared = any(each.share for each in self.without())
        turns = self._turns()
        at_once = shared and len(turns) > 1 and not turns[0].has_share  # then none of these has a share
        had_turns = [each for each in turns if at_once or self._turn_ends_s(each) <= now_s]
        if had_turns:
            self.turn_ends_s = now_s + TURN * self.start_s
        return min(had_turns, key=lambda each: each.given_s, default=None)

    def next_s(self, now_s: float, busy: Container[str]) -> float:
        """Return the first time after `now_s` at which `gives_way` may say otherwise without an event; 0 for none."""
        times = [self._unused_until_s(each, busy) for each in self.given()] + [*map(self._turn_ends_s, self._turns())]
        return min((time_s for time_s in times if now_s < time_s < math.inf), default=0.0)

    def _turns(self) -> list[ClientExecutor]:
        """Return the executors whose turns end: those without shares, or all if there are no others."""
        ready = [each for each in self.given() if each.ready]
        return [each for each in ready if not each.has_share] or ready

    def _turn_ends_s(self, executor: ClientExecutor) -> float:
        return max(self.turn_ends_s, executor.given_s + TURN * self.start_s)

    def _unused_until_s(self, executor: ClientExecutor, busy: Container[str]) -> float:
        """Return when an executor will have been without requests for as long as a start takes."""
        return math.inf if executor.client in busy else executor.unused_s + self.start_s

    def loaded(self, executor: ClientExecutor, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Take in that an executor has loaded objects; return those that no executor of the device had."""
        new = [key for key in dict.fromkeys(keys) if key not in executor.keys]
        executor.keys.update(new)
        for key in new:
            self.holders[key] = self.holders.get(key, 0) + 1
        return tuple([key for key in new if self.holders[key] == 1])

    def left(self, executor: ClientExecutor, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Take in that objects have left an executor; return those that no executor of the device has any more."""
        gone = [key for key in dict.fromkeys(keys) if key in executor.keys]
        executor.keys.difference_update(gone)
        for key in gone:
            self.holders[key] -= 1
        last = tuple([key for key in gone if not self.holders[key]])
        for key in last:
            del self.holders[key]
        return last


@dataclass(slots=True, eq=False)
class DividedOrder:
    """A Prefetch or Evict of the policy, and what came of it.

    Fields:
        shared: the executor that the policy named. parts: executors that have not answered. loaded: objects that were
            moved. there: those that are where the policy wants them.
    """

    shared: int
    number: int
    keys: tuple[bytes, ...]
    parts: int = 0
    loaded: set[bytes] = field(default_factory=set)
    there: set[bytes] = field(default_factory=set)
    seconds: float = 0.0

    def answer(self, time_s: float) -> Ordered:
        """Return the answer to the whole order."""
        loaded = tuple([key for key in self.keys if key in self.loaded])
        refused = tuple([key for key in self.keys if key not in self.there])
        return Ordered(time_s, self.shared, self.number, loaded, refused, self.seconds)
