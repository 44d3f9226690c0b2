"""Clients' shares of device time: their weights, their limits, and the device seconds that they are charged."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from kaas.scheduling.events import ClientKnown

WINDOW_S = 1.0
"""Seconds of its share of device time that a client may save up: so long it may have all devices after an absence."""
MOST_SHARES = 4096
"""Shares that are kept beside twice those of present and known clients; beyond this number those of absent clients go
that have had least, until half of it remains."""
TOLERANCE_S = 1e-9
"""Below it, a difference of device seconds is rounding."""
SHORTEST_WAIT_S = 1e-6
"""The shortest wait that any clock can measure."""


@dataclass(slots=True, eq=False)
class ClientShare:
    """The share of one client.

    Fields:
        weight, priority, max_running, max_share, devices: as in `ClientKnown`. charged_s: device seconds, with the
            estimates of running requests. mean_s: device seconds of a request. latency_s: seconds of a request from its
            arrival to its end. observations: requests that these means are of.
        limited: the client has max_running or max_share. last_device: the device that ran the client last; -1 if none
            did. pending: requests that are queued or run.
        savings_s: device seconds that max_share lets the client have at once, as of saved_s.
    """

    client: str
    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_share: float | None = None
    limited: bool = False
    charged_s: float = 0.0
    mean_s: float = 0.0
    latency_s: float = 0.0
    observations: int = 0
    devices: tuple[int, ...] = ()
    last_device: int = -1
    pending: int = 0
    running: int = 0
    announced: bool = False
    known: bool = False
    savings_s: float = 0.0
    saved_s: float = 0.0

    @property
    def present(self) -> bool:
        """True if the client competes for device time."""
        return self.pending > 0 or self.announced

    @property
    def time_s(self) -> float:
        """Device seconds per weight."""
        return self.charged_s / self.weight

    @property
    def started_s(self) -> float:
        """`time_s` at the start of the client's running request: without the estimate of that request."""
        return (max(0.0, self.charged_s - self.mean_s) if self.running else self.charged_s) / self.weight


NO_CLIENT = ClientShare("")
"""Stands for the client of a request whose client an earlier epoch of the pool has not left. No FairShare holds it."""


class FairShare(dict[str, ClientShare]):
    """The shares of all clients, by name. One that is looked up and not there is made.

    A client that comes back after a time without requests starts at the least time per weight of the present clients,
    or at that of the last one that was present, if it had less: absence saves nothing up. The least time is a time at
    which a request began, as the virtual time of start-time fair queueing is a start tag. Otherwise a client with one
    request at a time would come back level with the running client, and wait for another request of that client
    whenever an estimate is too high.

    Fields:
        devices: how many there are, of whose time clients may have a part. limited: those with limits. wake_s: when the
            first client that its max_share holds back may go on; None if none is held back.
    """

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.devices = devices
        self._present: dict[ClientShare, None] = {}
        self._starts: list[tuple[float, int, ClientShare]] = []  # heap of started_s; older entries are skipped
        self._newest: dict[ClientShare, int] = {}  # the numbers of their entries
        self._changed: dict[ClientShare, None] = {}
        self._entries = count()
        self._floor_s = 0.0
        self._most = MOST_SHARES
        self.limited: dict[ClientShare, None] = {}
        self.wake_s: float | None = None

    def __missing__(self, client: str) -> ClientShare:
        if len(self) >= self._most:
            self._forget()
            self._most = max(MOST_SHARES, 2 * len(self))
        share = self[client] = ClientShare(client)
        return share

    def weight(self, client: str) -> float:
        """Return the weight of a client; 1 of an unknown one."""
        share = self.get(client)
        return 1.0 if share is None else share.weight

    def mean_s(self, client: str) -> float:
        """Return the mean device seconds of a client's requests; 0 of an unknown one."""
        share = self.get(client)
        return 0.0 if share is None else share.mean_s

    def know(self, event: ClientKnown) -> ClientShare:
        """Take in the weight, the limits and the past of a client."""
        share = self[event.client]
        share.weight, share.priority = event.weight, event.priority
        if share.max_share != event.max_share:
            share.max_share, share.saved_s = event.max_share, event.time_s
            share.savings_s = self._most_saved_s(share)
        share.max_running = event.max_running
        share.limited = event.max_running is not None or event.max_share is not None
        if share.limited:
            self.limited[share] = None
        else:
            self.limited.pop(share, None)
        if event.charged_s is not None:
            share.charged_s = event.charged_s
        if event.mean_s is not None:
            share.mean_s = share.latency_s = event.mean_s
            share.observations = 1
        share.devices, share.last_device = event.devices, -1
        share.announced, share.known = event.present, True
        if share.present:
            self._present[share] = self._changed[share] = None
        else:
            self._present.pop(share, None)
            self._changed.pop(share, None)
            self._newest.pop(share, None)
        return share

    def gone(self, client: str) -> None:
        """Forget a client, when its last request has ended at the latest. The use of a limited one still counts."""
        share = self.get(client)
        if share is None:
            return
        present, share.announced, share.known = share.present, False, share.limited
        if not share.pending:
            if present:
                self._absent(share)
            if not share.known:
                del self[client]

    # --- presence

    def arrived(self, share: ClientShare, *, again: bool = False) -> None:
        """Count one more request. again: the request was here before and lost its worker."""
        if share not in self._present:
            if not again:
                self.lift(share, self._least_s())
            self._present[share] = self._changed[share] = None
        share.pending += 1

    def adopted(self, share: ClientShare) -> None:
        """Count one more request, which an earlier epoch of the pool dispatched, as a running one."""
        self.arrived(share)
        share.running += 1
        self._changed[share] = None

    def ended(self, share: ClientShare) -> None:
        """Count one request less."""
        share.pending -= 1
        if not share.pending:
            share.announced = False
            self._absent(share)

    def _least_s(self) -> float:
        """Return the time per weight at which a client begins."""
        starts = self._starts
        if not self._present:
            starts.clear()
            return self._floor_s
        newest = self._newest
        for share in self._changed:
            newest[share] = entry = next(self._entries)
            heapq.heappush(starts, (share.started_s, entry, share))
        self._changed.clear()
        if len(starts) > 64 + 4 * len(self._present):
            starts[:] = [each for each in starts if newest.get(each[2]) == each[1]]
            heapq.heapify(starts)
        while newest.get(starts[0][2]) != starts[0][1]:
            heapq.heappop(starts)
        return starts[0][0]

    def _absent(self, share: ClientShare) -> None:
        self._present.pop(share, None)
        self._changed.pop(share, None)
        self._newest.pop(share, None)
        if not self._present and (time_s := share.charged_s / share.weight) > self._floor_s:
            self._floor_s = time_s

    def _forget(self) -> None:
        """Forget absent clients, those first that are least ahead of a new one: they come back as new ones."""
        absent = sorted(
            (each for each in self.values() if not each.present and not each.known), key=lambda each: each.time_s
        )
        for share in absent[: -MOST_SHARES // 2]:
            del self[share.client]

    # --- charges

    def lift(self, share: ClientShare, time_s: float) -> None:
        """Let a client have had at least this time per weight: what it did not ask for is no credit."""
        charged_s = time_s * share.weight
        if share.charged_s < charged_s:
            share.charged_s = charged_s
            if share in self._present:
                self._changed[share] = None

    def dispatched(self, share: ClientShare) -> float:
        """Charge a request that begins with the client's mean, and return that estimate."""
        share.running += 1
        mean_s = share.mean_s
        share.charged_s += mean_s
        share.savings_s -= mean_s
        if share in self._present:
            self._changed[share] = None
        return mean_s

    def measured(self, share: ClientShare, estimate_s: float | None, device_s: float, latency_s: float | None) -> None:
        """Charge an ended request with its device seconds instead of the estimate.

        Args:
            share: the share of the client.
            estimate_s: what `dispatched` returned.
            device_s: device seconds of the request.
            latency_s: seconds from arrival to end; None if the request tells nothing about the next ones.
        """
        share.running -= 1
        more_s = device_s - (estimate_s or 0.0)
        charged_s = share.charged_s + more_s
        share.charged_s = charged_s if charged_s > 0.0 else 0.0  # max() would take as long as the rest
        share.savings_s -= more_s
        if share in self._present:
            self._changed[share] = None
        if latency_s is not None:
            share.observations += 1
            share.mean_s += (device_s - share.mean_s) / share.observations
            share.latency_s += (latency_s - share.latency_s) / share.observations

    def lost(self, share: ClientShare, estimate_s: float | None, device_s: float) -> None:
        """Charge a request that ended with its worker. It tells nothing about the next ones."""
        self.measured(share, estimate_s, device_s, None)

    # --- limits

    def room(self, share: ClientShare) -> int | None:
        """Return how many more requests max_running lets the client run; None for any number."""
        return None if share.max_running is None else share.max_running - share.running

    def held_back(self, waiting: Mapping[ClientShare, int], now_s: float) -> int:
        """Return how many of the clients' waiting requests limits hold back; `waiting` has those of each client."""
        limited = self.limited
        fewer, others = (waiting, limited) if len(waiting) < len(limited) else (limited, waiting)
        return sum(self._held_back(share, waiting[share], now_s) for share in fewer if share in others)

    def _held_back(self, share: ClientShare, waiting: int, now_s: float) -> int:
        room = self.room(share)
        return waiting if self.held(share, now_s) else 0 if room is None else max(0, waiting - room)

    def held(self, share: ClientShare, now_s: float) -> bool:
        """Return True if limits hold the client's next request back; by max_share, `wake_s` is the end of its wait."""
        if share.max_running is not None and share.running >= share.max_running:
            return True
        if share.max_share is None:
            return False
        rate = share.max_share * self.devices
        most_s = self._most_saved_s(share)
        share.savings_s = min(most_s, share.savings_s + rate * (now_s - share.saved_s))
        share.saved_s = now_s
        missing_s = min(share.mean_s, most_s) - share.savings_s
        if missing_s <= TOLERANCE_S:
            return False
        wake_s = now_s + max(missing_s / rate, SHORTEST_WAIT_S)
        self.wake_s = wake_s if self.wake_s is None else min(self.wake_s, wake_s)
        return True

    def _most_saved_s(self, share: ClientShare) -> float:
        return (share.max_share or 0.0) * self.devices * WINDOW_S
