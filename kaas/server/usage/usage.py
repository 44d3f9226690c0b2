"""Usage of clients: counts by client and function that add up exactly."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import msgspec

from kaas.pool.observing.ledger import FUNCTIONS_PER_CLIENT, OTHERS
from kaas.wire.specs import RunRecord

KEYS_PER_CLIENT = 1 << 14
"""Idempotency keys that are remembered for repeats after a restart: more than a client can have open."""
ASK_AGAIN = frozenset(
    (
        "cancelled",
        "Cancelled",
        "CodeUnavailable",
        "DeviceUnavailable",
        "PoolStopped",
        "QueueFull",
        "QuotaExceeded",
        "StateUnavailable",
        "UsageUnavailable",
    )
)
"""Outcomes without a charge: a repeat with the same key runs again."""
COMPILED = "compiled"
"""The outcome of a compilation, which is charged for its time and is no request."""


class Charge(msgspec.Struct, frozen=True, array_like=True):
    """The charge of a request. key: of idempotency; "" for none, or one not remembered. second: on the wall clock.
    instead_of: the outcome under which the request was charged before it failed; "" if it was not. part: of the
    device's SMs, which the request had."""

    client: str
    function: str
    key: str
    outcome: str
    device_ns: int
    bytes_in: int
    bytes_out: int
    bytes_copied: int
    second: int
    instead_of: str = ""
    part: float = 1.0


class FlowUsage(msgspec.Struct, frozen=True):
    """Usage of a client and a function. In a sum over all clients or all functions, client or function is "".

    Fields:
        requests: charged ones, which are all without an outcome of ASK_AGAIN. outcomes: of all, by "succeeded" or the
            error's name; "compiled" counts compilations. repeats: runs under a key that was charged before, without a
            further charge.
        device_ns: nanoseconds of kernels and of their preparation, with the processor time of compilers; of work that
            failed or ended its device, the time on the device. sm_ns: the same, each request's times the part of the
            device's SMs that it had: all of them without a share. bytes_in, bytes_out: of inputs and outputs sent over
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
    sm_ns: int = 0

    @property
    def device_s(self) -> float:
        """Seconds of devices."""
        return self.device_ns / 1e9

    @property
    def sm_s(self) -> float:
        """Seconds of all SMs of a device."""
        return self.sm_ns / 1e9


class KeptByClient(msgspec.Struct, frozen=True):
    """Storage of a client at the server.

    Fields:
        what: "objects" or "libraries". nbytes: last known. byte_s: bytes times seconds while a server was up.
    """

    client: str
    what: str
    nbytes: int
    byte_s: float


class Usage(msgspec.Struct, frozen=True):
    """All usage since the state folder was made."""

    flows: tuple[FlowUsage, ...] = ()
    holdings: tuple[KeptByClient, ...] = ()

    def by(self, what: Literal["client", "function"]) -> tuple[FlowUsage, ...]:
        """Return the sums by client or function, in order of names."""
        sums: dict[str, FlowCounts] = {}
        if what == "client":
            sums = {held.client: FlowCounts() for held in self.holdings}
        for flow in self.flows:
            sums.setdefault(getattr(flow, what), FlowCounts()).merge(flow)
        return tuple(
            sums[name].usage(name, "") if what == "client" else sums[name].usage("", name) for name in sorted(sums)
        )

    def byte_s(self, client: str) -> float:
        """Return the bytes times seconds of all that a client has stored."""
        return sum(held.byte_s for held in self.holdings if held.client == client)

    def of(self, client: str | None) -> Usage:
        """Return the usage of a client; None: of all."""
        if client is None:
            return self
        return Usage(
            tuple(flow for flow in self.flows if flow.client == client),
            tuple(held for held in self.holdings if held.client == client),
        )


class FlowCounts:
    """Counts of one client and function."""

    __slots__ = ("bytes_copied", "bytes_in", "bytes_out", "device_ns", "outcomes", "repeats", "requests", "sm_ns")

    def __init__(self) -> None:
        self.requests = 0
        self.outcomes: dict[str, int] = {}
        self.repeats = 0
        self.device_ns = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_copied = 0
        self.sm_ns = 0

    def add(self, charge: Charge) -> None:
        """Add a charge."""
        outcome = charge.outcome
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.requests += outcome not in ASK_AGAIN and outcome != COMPILED
        self.device_ns += charge.device_ns
        self.bytes_in += charge.bytes_in
        self.bytes_out += charge.bytes_out
        self.bytes_copied += charge.bytes_copied
        self.sm_ns += round(charge.device_ns * charge.part)
        former = charge.instead_of
        if former in self.outcomes:  # else the former charge is in a damaged part of the journal
            self.requests -= former not in ASK_AGAIN
            self.outcomes[former] -= 1
            if not self.outcomes[former]:
                del self.outcomes[former]

    def merge(self, other: FlowUsage) -> None:
        """Add the counts of another usage."""
        self.requests += other.requests
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.repeats += other.repeats
        self.device_ns += other.device_ns
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.bytes_copied += other.bytes_copied
        self.sm_ns += other.sm_ns

    def usage(self, client: str, function: str) -> FlowUsage:
        """Return the counts under these names."""
        counts = (self.requests, dict(self.outcomes), self.repeats, self.device_ns)
        return FlowUsage(client, function, *counts, self.bytes_in, self.bytes_out, self.bytes_copied, self.sm_ns)


class Totals:
    """Sums of charges, and the keys of charged requests."""

    def __init__(self) -> None:
        self.flows: dict[tuple[str, str], FlowCounts] = {}
        self.keys: dict[str, OrderedDict[str, bool]] = {}  # by client: True if a reply was sent
        self._functions: dict[str, int] = {}

    def flow(self, client: str, function: str) -> tuple[tuple[str, str], FlowCounts]:
        """Return the counts of a client and function, after the names under which they are counted."""
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

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return the number of requests by client and outcome."""
        counts: dict[tuple[str, str], int] = {}
        for (client, _), flow in self.flows.items():
            for outcome, count in flow.outcomes.items():
                counts[client, outcome] = counts.get((client, outcome), 0) + count
        return counts

    def charged(self, client: str, key: str) -> bool:
        """Return True if a request with this key was charged and no reply to it was sent."""
        keys = self.keys.get(client)
        return keys is not None and keys.get(key) is False

    def add(self, charge: Charge) -> tuple[str, str]:
        """Add a charge. Return the names under which it was counted."""
        name = (charge.client, charge.function)
        flow = self.flows.get(name)
        if flow is None:
            name, flow = self.flow(*name)
        flow.add(charge)
        if charge.instead_of:
            self.forget(charge.client, charge.key)
        elif charge.key and charge.key not in self.keys.get(charge.client, ()):
            self.remember(charge.client, charge.key)
        return name

    def remember(self, client: str, key: str) -> None:
        """Note the key of a charged request whose reply was not sent yet."""
        known = self.keys.get(client)
        if known is None:
            known = self.keys[client] = OrderedDict()
        known[key] = False
        if len(known) > KEYS_PER_CLIENT:
            known.popitem(last=False)

    def forget_all(self, client: str) -> list[str]:
        """Forget the keys of a client. Return them."""
        return list(self.keys.pop(client, ()))

    def deliver(self, client: str, key: str) -> None:
        """Note that a reply to the request with a key was sent."""
        keys = self.keys.get(client)
        if keys is not None and key in keys:
            keys[key] = True

    def forget(self, client: str, key: str) -> None:
        """Forget a key."""
        keys = self.keys.get(client)
        if keys is not None:
            keys.pop(key, None)

    def usage(self, client: str | None = None) -> tuple[FlowUsage, ...]:
        """Return the usage of a client, or of all."""
        names = sorted(name for name in self.flows if client in (None, name[0]))
        return tuple(self.flows[name].usage(*name) for name in names)


def reported(usage: Usage) -> Any:
    """Return the usage as maps, lists, numbers and text."""
    return msgspec.to_builtins(usage)


def measured(record: RunRecord | None, by_value_bytes: int) -> tuple[int, int, float]:
    """Return nanoseconds of the device, with the kTask's preparation, bytes copied between it and the host, and the
    part of its SMs."""
    if record is None:
        return 0, 0, 1.0
    brought = sum(use.nbytes for tier, use in record.tiers.items() if tier != "device") if record.tiers else 0
    device_s = record.device_s + record.stages.get("plan", 0.0)  # includes the compilation of a new kTask's code
    return round(device_s * 1e9), by_value_bytes + brought, record.part
