"""Connections that have shown no key yet, by the address that they come from, and which of them makes room."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

IPV6_PREFIX = 64
"""Bits that a network has in common: one host may use all addresses in it."""


class Newcomers:
    """most: connections in all. most_each: of one source. Beyond either the largest source loses one."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._sources: dict[int, str] = {}
        self._by_source: dict[str, dict[int, None]] = {}  # of each the oldest first

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, connection: int, source: str) -> None:
        self._sources[connection] = source
        self._by_source.setdefault(source, {})[connection] = None

    def discard(self, connection: int) -> None:
        source = self._sources.pop(connection, None)
        if source is None:
            return
        mine = self._by_source[source]
        del mine[connection]
        if not mine:
            del self._by_source[source]

    def excess(self, silent: Callable[[int], bool]) -> int | None:
        """The connection that ends, so that the limits are kept; None if they are.

        Of the largest source it is the oldest that is silent: a client sends its greeting with its first packet, and a
        bare connect sends nothing. The newest of all may be about to. If none is silent the oldest ends.
        """
        largest = max(self._by_source.values(), key=len, default={})
        if len(self._sources) <= self._most and len(largest) <= self._most_each:
            return None
        oldest, newest = next(iter(largest)), next(reversed(self._sources))
        return next((each for each in largest if each != newest and silent(each)), oldest)


def source_of(address: str) -> str:
    """What counts as one source: an address of IPv4, a network of IPv6; "" for an address that is not known."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or IPv6Address(int(ip) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX)))
