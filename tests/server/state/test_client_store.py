"""The data of a client as a whole."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from kaas.errors import StateUnavailable
from kaas.server.state.client_store import ClientStore
from kaas.server.state.object_store import NewObject
from kaas.server.state.state_folder import CLIENTS, LOCKED_AGAIN_S
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


def test_a_folder_that_was_renamed_is_not_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path / "state") as had:
            await had.put("ada", "x", np.ones(4, np.uint8))
            assert not had.state.gone()
            (tmp_path / "state").rename(tmp_path / "elsewhere")
            assert had.state.gone()
            for client in ("ada", "bob"):
                with pytest.raises(StateUnavailable, match="No such file"):
                    await had.put(client, "y", np.zeros(4, np.uint8))
            assert not (tmp_path / "state").exists()
            (tmp_path / "state").mkdir()
            (tmp_path / "state" / CLIENTS).touch()
            assert had.state.gone()  # it is another one
        async with Had(tmp_path / "elsewhere") as had:
            assert await had.get("ada", "x") == bytes([1] * 4)

    asyncio.run(scenario())


def test_a_file_in_the_place_of_the_uploads_is_set_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "state").mkdir(mode=0o700)
        (tmp_path / "state" / "contents").write_text("an operator's")
        async with Had(tmp_path / "state") as had:
            assert had.state.damaged
            await had.put("ada", "x", np.ones(4, np.uint8))
            shutil.rmtree(tmp_path / "state" / "contents")
            await had.put("ada", "x", np.zeros(4, np.uint8))

    asyncio.run(scenario())


def test_a_change_can_be_repeated_when_another_process_has_locked_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path / "state") as had:
            with closing(sqlite3.connect(tmp_path / "state" / CLIENTS, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StateUnavailable, match="locked") as raised:
                    await had.put("ada", "x", np.ones(4, np.uint8))
                assert raised.value.retry_s == LOCKED_AGAIN_S
                other.execute("ROLLBACK")
            await had.put("ada", "x", np.ones(4, np.uint8))

    asyncio.run(scenario())
