"""Shares of clients: their weights, their limits, and the device seconds that they are charged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from kaas.scheduling.events import ClientKnown

WINDOW_S = 1.0
"""How much of its share of device time a client may save up: so long it may have all devices after a time without."""
ACCOUNTS = 4096
"""Accounts that are kept of clients who are away; beyond it those go that make no difference."""
TOLERANCE_S = 1e-9
"""Below it, a difference of device seconds is rounding."""
SHORTEST_WAIT_S = 1e-6
"""A wait that any clock can tell from none."""


@dataclass(slots=True, eq=False)
class ClientShare:
    """One client.

    Fields:
        weight, priority, max_running, max_share, devices: as in `ClientKnown`. charged_s: device seconds, the estimates
        of
            running requests included. mean_s: device seconds of a request. latency_s: seconds of a request from its
            arrival to its end. observations: requests that these means are of.
        last_device: the device that ran the client last; -1 if none did. pending: requests that are queued or run.
        savings_s: device seconds that max_share lets the client have at once, as of saved_s.
    """

    client: str
    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_share: float | None = None
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
    def limited(self) -> bool:
        """True if the client has a limit of its own."""
        return self.max_running is not None or self.max_share is not None

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
        return max(0.0, self.charged_s - self.mean_s) / self.weight if self.running else self.time_s


_STARTED_S: Callable[[ClientShare], float] = attrgetter("started_s")
NO_CLIENT = ClientShare("")
"""Whose requests are, of which an earlier epoch of the pool has left no client; it is among no Accounts."""


class FairShare:
    """The shares of all clients.

    A client that comes back after a time without requests starts at the least time per weight of the present clients,
    or at that of the last one that was present, if it had less: absence saves nothing up. The least time is a time at
    which a request began, as the virtual time of start-time fair queueing is a start tag. Otherwise a client with one
    request at a time would come back level with the running client, and wait for another request of that client
    whenever an estimate is too high.

    Fields:
        wake_s: when the first client that its share holds back may go on; None if none is held back.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._accounts: dict[str, ClientShare] = {}
        self._present: dict[str, ClientShare] = {}
        self._floor_s = 0.0
        self.wake_s: float | None = None
        """When the first client that its share holds back may go on."""

    def __getitem__(self, client: str) -> ClientShare:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= ACCOUNTS:
                self._forget()
            account = self._accounts[client] = ClientShare(client)
        return account

    def __len__(self) -> int:
        return len(self._accounts)

    def weight(self, client: str) -> float:
        """Return the weight of a client; 1 of an unknown one."""
        account = self._accounts.get(client)
        return 1.0 if account is None else account.weight

    def mean_s(self, client: str) -> float:
        """Return the mean device seconds of a client's requests; 0 of an unknown one."""
        account = self._accounts.get(client)
        return 0.0 if account is None else account.mean_s

    def know(self, event: ClientKnown) -> ClientShare:
        """Take in the weight, the limits and the past of a client."""
        account = self[event.client]
        account.weight, account.priority = event.weight, event.priority
        if account.max_share != event.max_share:
            account.max_share, account.saved_s = event.max_share, event.time_s
            account.savings_s = self._most_saved_s(account)
        account.max_running = event.max_running
        if event.charged_s is not None:
            account.charged_s = event.charged_s
        if event.mean_s is not None:
            account.mean_s = account.latency_s = event.mean_s
            account.observations = 1
        account.devices, account.last_device = event.devices, -1
        account.announced, account.known = event.present, True
        if account.present:
            self._present[account.client] = account
        else:
            self._present.pop(account.client, None)
        return account

    def gone(self, client: str) -> None:
        """Forget a client, when its last request has ended at the latest."""
        account = self._accounts.get(client)
        if account is None:
            return
        account.announced = account.known = False
        if not account.pending:
            if account.client in self._present:
                self._absent(account)
            del self._accounts[client]

    # --- presence

    def arrived(self, account: ClientShare, *, again: bool = False) -> None:
        """Count one more request. again: the request was here before and lost its worker."""
        if account.client not in self._present:
            least_s = self._least_s()
            if not again and account.time_s < least_s:
                account.charged_s = least_s * account.weight
            self._present[account.client] = account
        account.pending += 1

    def ended(self, account: ClientShare) -> None:
        """Count one request less."""
        account.pending -= 1
        if not account.pending:
            account.announced = False
            self._absent(account)

    def _least_s(self) -> float:
        """Return the time per weight at which a client begins."""
        return min(map(_STARTED_S, self._present.values())) if self._present else self._floor_s

    def _absent(self, account: ClientShare) -> None:
        self._present.pop(account.client, None)
        if not self._present:
            self._floor_s = max(self._floor_s, account.time_s)

    def _forget(self) -> None:
        """Forget clients that would come back at the time of the present clients, as a new client does."""
        least_s = self._least_s()
        for client, account in list(self._accounts.items()):
            if not account.present and not account.known and account.time_s <= least_s:
                del self._accounts[client]

    # --- charges

    def dispatched(self, account: ClientShare) -> float:
        """Charge a request that begins with the client's mean, and return that estimate."""
        account.running += 1
        self._charge(account, account.mean_s)
        return account.mean_s

    def measured(
        self, account: ClientShare, estimate_s: float | None, device_s: float, latency_s: float | None
    ) -> None:
        """Charge an ended request with its device seconds instead of the estimate.

        Args:
            account: the client's.
            estimate_s: what `dispatched` returned.
            device_s: device seconds of the request.
            latency_s: seconds from arrival to end; None if the request tells nothing about the next ones.
        """
        account.running -= 1
        self._charge(account, device_s - (estimate_s or 0.0))
        if latency_s is not None:
            account.observations += 1
            account.mean_s += (device_s - account.mean_s) / account.observations
            account.latency_s += (latency_s - account.latency_s) / account.observations

    def lost(self, account: ClientShare, estimate_s: float | None, device_s: float) -> None:
        """Charge a request that ended with its worker. It tells nothing about the next ones."""
        self.measured(account, estimate_s, device_s, None)

    def _charge(self, account: ClientShare, device_s: float) -> None:
        account.charged_s = max(0.0, account.charged_s + device_s)
        account.savings_s -= device_s

    # --- limits

    def room(self, account: ClientShare) -> int | None:
        """Return how many more requests max_running lets the client run; None for any number."""
        return None if account.max_running is None else account.max_running - account.running

    def held(self, account: ClientShare, now_s: float) -> bool:
        """Return True if limits hold the client's next request back; `wake_s` is then when its share does not."""
        if account.max_running is not None and account.running >= account.max_running:
            return True
        if account.max_share is None:
            return False
        rate = account.max_share * self._devices
        most_s = self._most_saved_s(account)
        account.savings_s = min(most_s, account.savings_s + rate * (now_s - account.saved_s))
        account.saved_s = now_s
        missing_s = min(account.mean_s, most_s) - account.savings_s
        if missing_s <= TOLERANCE_S:
            return False
        wake_s = now_s + max(missing_s / rate, SHORTEST_WAIT_S)
        self.wake_s = wake_s if self.wake_s is None else min(self.wake_s, wake_s)
        return True

    def _most_saved_s(self, account: ClientShare) -> float:
        return (account.max_share or 0.0) * self._devices * WINDOW_S
