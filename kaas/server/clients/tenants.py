"""The owners of clients' names: another owner of a name gets none of the earlier owner's data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kaas.server.state.state_folder import State

KIND = "tenants"


class TenantRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a name's owner on disk."""

    client: str
    tenant: str


class Tenants:
    """The tenant of each name when the server last read the keys. It is "" for names of older versions, as in their
    files of keys."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, str] = {}
        self._adopts = False

    def open(self) -> None:
        """Load the tenants of earlier epochs."""
        rows = self._state.read(KIND, msgspec.msgpack.Decoder(TenantRow).decode)
        self._known = {each.client: each.tenant for each in rows}
        self._adopts = self._state.damaged

    def changed(self, now: Mapping[str, str], purged: Collection[tuple[str, str]]) -> set[str]:
        """Return the names whose data must be removed before `now` applies to them.

        Args:
            now: tenants by name. purged: names and tenants whose data is removed in any case.
        """
        if self._adopts:  # the owner is unknown; to remove the data would make the damage worse
            self._known = {**dict(now), **self._known}
            self._adopts = False
        gone = {name for name, tenant in now.items() if self._known.get(name, "") != tenant}
        return gone | {name for name, tenant in purged if name not in now and self._known.get(name) == tenant}

    def settle(self, now: Mapping[str, str], forgotten: Collection[str]) -> None:
        """Write the current tenants.

        Raises:
            KaasError
        """
        for name in forgotten:
            if name not in now:
                self._state.remove(KIND, name, "")
                self._known.pop(name, None)
        for name, tenant in now.items():
            if self._known.get(name) != tenant:
                entry = msgspec.msgpack.encode(TenantRow(name, tenant))
                self._state.put(KIND, name, "", entry)
                self._known[name] = tenant
