"""The executors of several clients on one device, as `ProcessIsolation` knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kaas.scheduling.events import Ordered


@dataclass(slots=True, eq=False)
class ClientExecutor:
    """An executor from its start to its end.

    Fields:
        client: "" of a spare one. turn: the number of its last dispatch. running: its requests, with their slots. keys:
            the objects that it has on the device. parts: the numbers of the orders that it has not answered. awaited:
            the requests that it has started for, until one of them runs on it or all have gone elsewhere.
    """

    worker: int
    client: str = ""
    ready: bool = False
    stopping: bool = False
    turn: int = 0
    running: dict[int, int] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)
    parts: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class DeviceExecutors:
    """A device and its executors.

    Fields:
        most: clients whose executors may be on it at a time.
        shared: the executor that the policy inside sees, None if it sees none. seen: that one is ready. closing: why
            it ends, once it has no executors; "" if it does not. failed: the last executor did not start.
        executors: by worker. waiting: requests that wait for an executor, with their clients. holders: for each object,
            how many executors have it.
    """

    index: int
    most: int
    shared: int | None = None
    seen: bool = False
    closing: str = ""
    failed: bool = False
    executors: dict[int, ClientExecutor] = field(default_factory=dict)
    waiting: dict[int, str] = field(default_factory=dict)
    holders: dict[bytes, int] = field(default_factory=dict)

    def executor_of(self, client: str) -> ClientExecutor | None:
        """Return the executor of a client, or the spare one for ""."""
        for each in self.executors.values():
            if each.client == client and not each.stopping:
                return each
        return None

    def given(self) -> list[ClientExecutor]:
        """Return the executors that have clients, and memory."""
        return [each for each in self.executors.values() if each.client]

    def idle(self) -> list[ClientExecutor]:
        """Return the executors that no request needs, those used longest ago first."""
        needed = set() if self.closing else set(self.waiting.values())
        unused = [each for each in self.executors.values() if not (each.running or each.stopping)]
        unused = [each for each in unused if self.closing or not each.awaited]
        return sorted([each for each in unused if each.client not in needed], key=lambda each: each.turn)

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
