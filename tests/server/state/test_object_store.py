"""Objects that remote clients have put at a server: by name, counted, kept over restarts, and each client's own."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidRequest, KaasError, MissingContent, QuotaExceeded, UnknownObject, WrongSize
from kaas.server.state import object_store as values_module
from kaas.server.state.blob_store import GRAIN_BYTES
from kaas.server.state.object_store import NewObject
from kaas.server.usage.quotas import Quotas
from kaas.store import SqliteStore
from kaas.wire import protocol
from tests.server.building.test_uploads import files
from tests.server.state.states import Had, hash_of

SMALL = np.arange(10, dtype=np.float32)
LARGE = np.random.default_rng(0).random(400_000)


def put_frame(name: str, dtype: str, shape: tuple[int, ...], sha256: str = "") -> protocol.Put:
    return protocol.Put(4, name, dtype, shape, sha256)


def test_values_are_read_in_parts_and_survive_a_restart(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "small", SMALL)
            await had.put("ada", "large", LARGE)
            await had.put("bob", "small", SMALL * 2)
            before = dict(had.held)
        async with Had(tmp_path) as had:
            assert await had.get("ada", "small") == SMALL.tobytes()
            assert await had.get("ada", "large") == LARGE.tobytes()
            assert await had.get("bob", "small") == (SMALL * 2).tobytes()
            assert had.values.list("ada", protocol.Objects(6)) == protocol.Listed(
                6,
                [
                    {"name": "small", "dtype": "float32", "shape": (10,), "bytes": 40},
                    {"name": "large", "dtype": "float64", "shape": (400_000,), "bytes": 3_200_000},
                ],
            )
            assert had.held == before
            assert had.values.stored_bytes("ada") == GRAIN_BYTES + LARGE.nbytes
            value, part = had.values.get("ada", protocol.Get(5, "large", 8, 16))
            assert value == protocol.Value(5, "float64", (400_000,), LARGE.nbytes, hash_of(LARGE.tobytes()))
            assert bytes(part) == LARGE[1:3].tobytes()
            assert len(had.values.get("ada", protocol.Get(5, "large", 0, 1 << 60))[1]) == protocol.CHUNK_BYTES

    asyncio.run(restart_scenario())


def test_a_value_that_was_uploaded_gets_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            sha256 = await had.upload("ada", LARGE.tobytes())
            for name, dtype, shape in (("flat", "float64", (400_000,)), ("bytes", "uint8", (800, 4000))):
                await had.values.put("ada", put_frame(name, dtype, shape, sha256), None)
            assert await had.get("ada", "bytes") == LARGE.tobytes()
            assert had.values.named("ada", "flat").ref is had.values.named("ada", "bytes").ref
            assert had.held["ada", "objects"] == LARGE.nbytes
            assert files(tmp_path) == [sha256]
            await had.values.delete("ada", protocol.Delete(7, "flat"))
            assert await had.get("ada", "bytes") == LARGE.tobytes()
            assert await had.values.delete("ada", protocol.Delete(7, "bytes")) == protocol.Done(7)
            assert (files(tmp_path), had.held["ada", "objects"]) == ([], 0)

    asyncio.run(scenario())


def test_a_new_value_replaces_the_value_of_the_same_name(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", SMALL)
            await had.put("ada", "x", SMALL)
            first = had.values.named("ada", "x").ref
            await had.put("ada", "x", LARGE)
            assert bytes(had.objects.view(first)) == SMALL.tobytes()  # requests that run still have it
            assert files(tmp_path) == [hash_of(LARGE.tobytes())]
        async with Had(tmp_path) as had:
            assert await had.get("ada", "x") == LARGE.tobytes()

    asyncio.run(restart_scenario())


def test_outputs_are_stored_under_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path, {"ada": Quotas(stored_bytes=4 * GRAIN_BYTES)}) as had:
            had.values.check_room("ada", {"y": 40, "z": GRAIN_BYTES})
            both = [NewObject("y", "float32", (10,), SMALL.data), NewObject("z", "uint8", (40,), SMALL.data)]
            await had.values.store("ada", both, {"more": {"k": b"entry"}})
            assert [await had.get("ada", name) for name in "yz"] == [SMALL.tobytes()] * 2
            assert had.state.read("more", bytes) == [b"entry"]
            with pytest.raises(WrongSize):
                await had.values.store("ada", [replace(both[0], value=LARGE.data), replace(both[1], shape=(1,))], {})
            assert [await had.get("ada", name) for name in "yz"] == [SMALL.tobytes()] * 2
            with pytest.raises(QuotaExceeded):
                had.values.check_room("ada", {"y": 40, "z": 40, "a": 40, "b": 40})
            with pytest.raises(InvalidRequest):
                had.values.check_room("ada", {"": 40})

    asyncio.run(scenario())


def test_outputs_are_stored_though_the_replaced_values_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request would run again, and read what it has stored."""

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", LARGE)
            with monkeypatch.context() as patch:
                patch.setattr(SqliteStore, "remove", fails)
                await had.values.store("ada", [NewObject("x", "float32", (10,), SMALL.data)], {})
            assert await had.get("ada", "x") == SMALL.tobytes()
        async with Had(tmp_path) as had:
            assert await had.get("ada", "x") == SMALL.tobytes()
            assert had.held["ada", "objects"] == GRAIN_BYTES
            assert not had.state.damaged

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", ".", "..", "x y", "Größe", "%2e", "'; --"])
def test_names_are_names_and_no_paths(name: str, tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path / "state") as had:
            await had.put("ada", name, SMALL)
        async with Had(tmp_path / "state") as had:
            assert await had.get("ada", name) == SMALL.tobytes()
            assert files(tmp_path / "state") == [hash_of(SMALL.tobytes())]

    asyncio.run(restart_scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("message", "frame", "error"),
    [
        (put_frame("", "uint8", (4,)), b"1234", InvalidRequest),
        (put_frame("a\0b", "uint8", (4,)), b"1234", InvalidRequest),
        (put_frame("x" * 201, "uint8", (4,)), b"1234", InvalidRequest),
        (put_frame("x", "object", (4,)), b"1234", InvalidRequest),
        (put_frame("x", "x" * 10_000, (4,)), b"1234", InvalidRequest),
        (put_frame("x", "uint8", (5,)), b"1234", WrongSize),
        (put_frame("x", "uint8"[:5], ()), b"1234", WrongSize),
        (put_frame("x", "uint8", (-4,)), b"1234", InvalidRequest),
        (put_frame("x", "uint8", (-2, -2)), b"1234", InvalidRequest),
        (put_frame("x", "uint8", (1 << 61, 1 << 61)), b"1234", WrongSize),
        (put_frame("x", "uint8", (0, 1 << 62)), b"", InvalidRequest),
        (put_frame("x", "uint8", (1,) * 33), b"1", InvalidRequest),
        (put_frame("x", "uint8", ((1 << 64) - 1,) * 1_000_000), b"1", InvalidRequest),
        (put_frame("x", "uint8", (4,)), None, InvalidRequest),
        (put_frame("x", "uint8", (4,), hash_of(b"1234")), None, MissingContent),
        (put_frame("x", "uint8", (4,), "../" * 20), None, MissingContent),
    ],
)
def test_senseless_values(message: protocol.Put, frame: bytes | None, error: type[KaasError], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            with pytest.raises(error) as caught:
                await had.values.put("ada", message, frame)
            assert len(caught.value.message) < 2000
            assert files(tmp_path) == []
            assert had.values.list("ada", protocol.Objects(1)).entries == []
            assert had.values.stored_bytes("ada") == 0

    asyncio.run(scenario())


def test_an_empty_value_is_stored(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", np.empty((0, 3), np.float32))
        async with Had(tmp_path) as had:
            assert await had.get("ada", "x") == b""

    asyncio.run(restart_scenario())


def test_unknown_names_and_invalid_ranges_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", SMALL)
            for client in ("ada", "bob"):
                for name in ("y", "x" * 10_000) if client == "ada" else ("x",):
                    with pytest.raises(UnknownObject) as caught:
                        had.values.get(client, protocol.Get(1, name))
                    assert len(caught.value.object) <= 200
                    with pytest.raises(UnknownObject):
                        await had.values.delete(client, protocol.Delete(1, name))
            for offset, nbytes in ((-1, 1), (41, 1), (0, -1)):
                with pytest.raises(InvalidRequest):
                    had.values.get("ada", protocol.Get(1, "x", offset, nbytes))
            assert had.values.get("ada", protocol.Get(1, "x", 40, 1))[1] == b""

    asyncio.run(scenario())


def test_two_clients_share_no_copy_of_the_same_bytes(tmp_path: Path) -> None:
    """Otherwise a client could learn from a warm cache that another client has the same value."""

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            for client in ("ada", "bob"):
                await had.put(client, "x", SMALL)
            keys = {had.values.named(client, "x").ref.binary() for client in ("ada", "bob")}
            assert len(keys) == 2

    asyncio.run(scenario())


def test_a_client_has_a_limited_number_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "MOST_NAMES", 3)

    async def scenario() -> None:
        async with Had(tmp_path) as had:
            for name in "abc":
                await had.put("ada", name, SMALL)
            with pytest.raises(QuotaExceeded) as caught:
                await had.put("ada", "d", SMALL)
            assert (caught.value.quota, caught.value.limit) == ("objects", 3)
            await had.put("ada", "a", SMALL)
            await had.put("bob", "d", SMALL)

    asyncio.run(scenario())


@pytest.mark.parametrize(("nbytes", "fits"), [(3 * GRAIN_BYTES, True), (3 * GRAIN_BYTES + 1, False)])
def test_the_last_byte_of_a_quota(nbytes: int, fits: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path, {"ada": Quotas(stored_bytes=4 * GRAIN_BYTES)}) as had:
            await had.put("ada", "x", SMALL)
            await had.upload("ada", b"gives way")
            if fits:
                await had.put("ada", "y", np.zeros(nbytes, np.uint8))
                assert had.values.stored_bytes("ada") == 4 * GRAIN_BYTES
                with pytest.raises(QuotaExceeded):
                    await had.put("ada", "z", SMALL * 2)
                await had.put("ada", "z", SMALL)  # the same bytes as x
            else:
                with pytest.raises(QuotaExceeded):
                    await had.put("ada", "y", np.zeros(nbytes, np.uint8))
                assert had.values.stored_bytes("ada") == 2 * GRAIN_BYTES

    asyncio.run(scenario())


def test_a_server_does_not_return_a_value_that_is_damaged_on_disk(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", SMALL)
            await had.put("ada", "y", LARGE)
            path = had.values.named("ada", "x").content.path
            path.write_bytes(b"!" * SMALL.nbytes)
        async with Had(tmp_path) as had:
            with pytest.raises(UnknownObject):
                had.values.named("ada", "x")
            assert await had.get("ada", "y") == LARGE.tobytes()

    asyncio.run(restart_scenario())


def test_memory_is_given_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            await had.put("ada", "x", LARGE)
            key = had.values.named("ada", "x").ref.binary()
            assert had.objects.holds(key)
            await had.values.delete("ada", protocol.Delete(1, "x"))
            gc.collect()
            assert not had.objects.holds(key)

    asyncio.run(scenario())


CONTENTS = [bytes([value]) * size for value, size in ((1, 10), (2, GRAIN_BYTES), (3, 2 * GRAIN_BYTES))]
STEPS = st.tuples(st.sampled_from(["put", "upload", "delete", "again"]), st.sampled_from("ab"), st.integers(0, 2))


@given(st.lists(STEPS, max_size=15))
def test_names_and_counts_are_right_after_any_puts_and_deletes(steps: list[tuple[str, str, int]]) -> None:
    quota = 3 * GRAIN_BYTES
    expected: dict[str, bytes] = {}

    async def restart_scenario(folder: Path) -> None:
        had = await Had(folder, {"ada": Quotas(stored_bytes=quota)}).__aenter__()
        for step, name, number in steps:
            data = CONTENTS[number]
            message = put_frame(name, "uint8", (len(data),))
            used = {bytes(each) for each in expected.values()}
            room = sum(max(GRAIN_BYTES, len(each)) for each in used | {data}) <= quota
            match step:
                case "put" if room:
                    await had.values.put("ada", message, data)
                    expected[name] = data
                case "put":
                    with pytest.raises(QuotaExceeded):
                        await had.values.put("ada", message, data)
                case "upload" if room:
                    await had.upload("ada", data)
                case "delete" if name in expected:
                    await had.values.delete("ada", protocol.Delete(1, name))
                    del expected[name]
                case "again":
                    await had.__aexit__()
                    had = await Had(folder, {"ada": Quotas(stored_bytes=quota)}).__aenter__()
            assert {name: await had.get("ada", name) for name in expected} == expected
            assert len(had.values.list("ada", protocol.Objects(1)).entries) == len(expected)
            least = sum(max(GRAIN_BYTES, len(each)) for each in {bytes(each) for each in expected.values()})
            assert least <= had.values.stored_bytes("ada") <= quota
        await had.__aexit__()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(restart_scenario(Path(folder)))


def test_a_cancelled_put_is_stored_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Had(tmp_path) as had:
            first: Any = asyncio.ensure_future(had.put("ada", "x", LARGE))
            await asyncio.sleep(0)
            first.cancel()
            await had.put("ada", "y", SMALL)  # comes after it
            assert await had.get("ada", "x") == LARGE.tobytes()

    asyncio.run(scenario())
