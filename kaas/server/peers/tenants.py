"""Who has had a client's name: what one has left at a server is not for another that is given the same name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kaas.server.state.state import State

KIND = "tenants"


class KeptTenants(msgspec.Struct, frozen=True, array_like=True):
    client: str
    tenant: str


class Tenants:
    """As they were when the server saw the names last. Of a name that older versions have seen, it is "", as in files
    of keys that those have made."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, str] = {}
        self._adopts = False

    def open(self) -> None:
        kept = self._state.read(KIND, msgspec.msgpack.Decoder(KeptTenants).decode)
        self._known = {each.client: each.tenant for each in kept}
        self._adopts = self._state.damaged

    def changed(self, now: Mapping[str, str], purged: Collection[tuple[str, str]]) -> set[str]:
        """Names of which all that was left is to be forgotten, before `now` is true of them.

        Args:
            now: tenants by name. purged: names and tenants that are to be forgotten in any case.
        """
        if self._adopts:  # it is not known whose it is; to throw it away would make the damage worse
            self._known = {**dict(now), **self._known}
            self._adopts = False
        gone = {name for name, tenant in now.items() if self._known.get(name, "") != tenant}
        return gone | {name for name, tenant in purged if name not in now and self._known.get(name) == tenant}

    def settle(self, now: Mapping[str, str], forgotten: Collection[str]) -> None:
        """That is true now.

        Raises:
            KaasError
        """
        for name in forgotten:
            if name not in now:
                self._state.remove(KIND, name, "")
                self._known.pop(name, None)
        for name, tenant in now.items():
            if self._known.get(name) != tenant:
                entry = msgspec.msgpack.encode(KeptTenants(name, tenant))
                self._state.put(KIND, name, "", entry)
                self._known[name] = tenant
