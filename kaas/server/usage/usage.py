"""What clients have used: counts that add up exactly, by client and function."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import msgspec

from kaas.pool.observing.ledger import FUNCTIONS_PER_CLIENT, OTHERS

KEYS_PER_CLIENT = 1 << 14
"""Keys of idempotency that are remembered: more than a client can have open, for it to ask again in another life."""
ASK_AGAIN = frozenset(
    ("cancelled", "Cancelled", "DeviceUnavailable", "PoolStopped", "QueueFull", "QuotaExceeded", "UsageUnavailable")
)
"""Outcomes after which the same key may come again and then is run: it was not charged."""


class Charge(msgspec.Struct, frozen=True, array_like=True):
    """One request. key: of idempotency; "" if it has none, or is not to be remembered. second: on the wall clock."""

    client: str
    function: str
    key: str
    outcome: str
    device_ns: int
    bytes_in: int
    bytes_out: int
    bytes_copied: int
    second: int


class FlowUsage(msgspec.Struct, frozen=True):
    """What one client has used of one function, or of all, or all clients of one: then client or function is "".

    Fields:
        requests: that were charged: all but those that ended so that they may be asked again. outcomes: of all, by
            "succeeded" or the error's name. repeats: runs under a key that had been charged, for which nothing was.
        device_ns: nanoseconds that kernels took, and preparing them; of work that failed or ended its device, the time
            on the device. bytes_in, bytes_out: of inputs that came, and outputs that went, over
            the network. bytes_copied: between host and devices.
    """

    client: str
    function: str
    requests: int = 0
    outcomes: dict[str, int] = {}
    repeats: int = 0
    device_ns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_copied: int = 0

    @property
    def device_s(self) -> float:
        return self.device_ns / 1e9


class KeptByClient(msgspec.Struct, frozen=True):
    """What a client keeps at the server.

    Fields:
        what: "objects" or "libraries". nbytes: now, as far as is known. byte_s: bytes times seconds, while a server was
            up.
    """

    client: str
    what: str
    nbytes: int
    byte_s: float


class Usage(msgspec.Struct, frozen=True):
    """Everything since the state folder was made."""

    flows: tuple[FlowUsage, ...] = ()
    holdings: tuple[KeptByClient, ...] = ()

    def by(self, what: Literal["client", "function"]) -> tuple[FlowUsage, ...]:
        """Summed up, in order of names."""
        sums: dict[str, FlowCounts] = {}
        if what == "client":
            sums = {held.client: FlowCounts() for held in self.holdings}
        for flow in self.flows:
            sums.setdefault(getattr(flow, what), FlowCounts()).merge(flow)
        return tuple(
            sums[name].usage(name, "") if what == "client" else sums[name].usage("", name) for name in sorted(sums)
        )

    def byte_s(self, client: str) -> float:
        """Of all that a client has held."""
        return sum(held.byte_s for held in self.holdings if held.client == client)

    def of(self, client: str | None) -> Usage:
        """What of it is a client's; None: all."""
        if client is None:
            return self
        return Usage(
            tuple(flow for flow in self.flows if flow.client == client),
            tuple(held for held in self.holdings if held.client == client),
        )


class FlowCounts:
    """What is counted of one client and function."""

    __slots__ = ("bytes_copied", "bytes_in", "bytes_out", "device_ns", "outcomes", "repeats", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.outcomes: dict[str, int] = {}
        self.repeats = 0
        self.device_ns = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_copied = 0

    def add(self, charge: Charge) -> None:
        outcome = charge.outcome
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.requests += outcome not in ASK_AGAIN
        self.device_ns += charge.device_ns
        self.bytes_in += charge.bytes_in
        self.bytes_out += charge.bytes_out
        self.bytes_copied += charge.bytes_copied

    def merge(self, other: FlowUsage) -> None:
        self.requests += other.requests
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.repeats += other.repeats
        self.device_ns += other.device_ns
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.bytes_copied += other.bytes_copied

    def usage(self, client: str, function: str) -> FlowUsage:
        counts = (self.requests, dict(self.outcomes), self.repeats, self.device_ns)
        return FlowUsage(client, function, *counts, self.bytes_in, self.bytes_out, self.bytes_copied)


class Totals:
    """Sums of charges, and which keys are among them."""

    def __init__(self) -> None:
        self.flows: dict[tuple[str, str], FlowCounts] = {}
        self.keys: dict[str, OrderedDict[str, bool]] = {}  # of each client: whether an answer went out
        self._functions: dict[str, int] = {}

    def flow(self, client: str, function: str) -> tuple[tuple[str, str], FlowCounts]:
        """Where something is counted, with its name."""
        name = (client, function)
        found = self.flows.get(name)
        if found is not None:
            return name, found
        if function != OTHERS:
            count = self._functions.get(client, 0)
            if count >= FUNCTIONS_PER_CLIENT:
                return self.flow(client, OTHERS)
            self._functions[client] = count + 1
        found = self.flows[name] = FlowCounts()
        return name, found

    def charged(self, client: str, key: str) -> bool:
        """Whether a request with this key is among them to which no answer went out."""
        keys = self.keys.get(client)
        return keys is not None and keys.get(key) is False

    def add(self, charge: Charge) -> tuple[str, str]:
        """Where it was counted."""
        name = (charge.client, charge.function)
        flow = self.flows.get(name)
        if flow is None:
            name, flow = self.flow(*name)
        flow.add(charge)
        if charge.key and charge.key not in self.keys.get(charge.client, ()):
            self.remember(charge.client, charge.key)
        return name

    def remember(self, client: str, key: str) -> None:
        """A request with this key is charged, and no answer to it has gone out yet."""
        known = self.keys.get(client)
        if known is None:
            known = self.keys[client] = OrderedDict()
        known[key] = False
        if len(known) > KEYS_PER_CLIENT:
            known.popitem(last=False)

    def forget_all(self, client: str) -> list[str]:
        """The keys that it had."""
        return list(self.keys.pop(client, ()))

    def deliver(self, client: str, key: str) -> None:
        """An answer to it went out."""
        keys = self.keys.get(client)
        if keys is not None and key in keys:
            keys[key] = True

    def forget(self, client: str, key: str) -> None:
        keys = self.keys.get(client)
        if keys is not None:
            keys.pop(key, None)

    def usage(self, client: str | None = None) -> tuple[FlowUsage, ...]:
        """Of one client, or all."""
        names = sorted(name for name in self.flows if client in (None, name[0]))
        return tuple(self.flows[name].usage(*name) for name in names)


def reported(usage: Usage) -> Any:
    """As maps, lists, numbers and text."""
    return msgspec.to_builtins(usage)
