"""The data of a client as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kaas.server.state.client_store import ClientStore
from kaas.server.state.object_store import NewObject
from kaas.wire import protocol
from tests.server.state.states import ANY, Had


def test_what_is_being_stored_when_a_client_is_purged_does_not_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path / "other") as had:
            stores = ClientStore(
                tmp_path / "state", had.registry, had.objects, lambda _: protocol.Limits(1, 1, 1), ANY, (), had._held
            )
            await stores.open()
            value = NewObject("x", "uint8", (4,), b"four")
            storing = asyncio.ensure_future(stores.objects.store("ada", [value], {"answers": {"k": b"a reply"}}))
            await asyncio.sleep(0)  # it has begun, and has not stored anything yet
            await stores.purge("ada")
            await storing
            assert stores.objects.list("ada", protocol.Objects(1)).entries == []
            assert stores._state.read("answers", bytes) == []
            stores.close()

    asyncio.run(scenario())
