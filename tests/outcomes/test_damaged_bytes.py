"""Of state files that were cut or flipped anywhere, all that is served is what was stored, and damage is reported."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import KaasError
from kaas.ktask.graph import KTask
from kaas.pool.core.accounts import ClientAccounts
from kaas.pool.core.profiles import MeasuredTimes, Profiles
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.functions import Registry
from kaas.server.clients.keys import Keys, new_client
from kaas.server.usage.journal import SEGMENT, Gap, charges
from kaas.server.usage.usage import FlowUsage
from kaas.store import ACCOUNTS, PROFILES, SqliteStore, opened
from kaas.wire import protocol, specs
from softgpu.disk_cache import DiskCache
from tests.api.conftest import add_task, scale_task
from tests.outcomes.every_write import Promised, ServerState
from tests.server.state.states import hash_of

VALUES = {f"value {number}": np.full(3000 + number, number, np.float32) for number in range(6)}
FLOWS = {f"function {number}": number + 1 for number in range(12)}
"""Numbers of charged requests by function."""
UNSENT = np.arange(40_000, dtype=np.float32).tobytes()


@dataclass(frozen=True)
class Damage:
    """A file is cut at a place, or a bit of it is flipped. where: of the whole, at least 0 and less than 1."""

    file: int
    where: float
    bit: int | None

    def path(self, folder: Path) -> Path:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        return files[self.file % len(files)]

    def apply(self, folder: Path) -> Path:
        """Damage a file of a folder. Return its path."""
        path = self.path(folder)
        data = bytearray(path.read_bytes())
        at = int(self.where * len(data))
        if self.bit is None:
            path.write_bytes(data[:at])
        else:
            data[at] ^= 1 << self.bit
            path.write_bytes(data)
        return path


damages = st.builds(
    Damage,
    st.integers(0, 40),
    st.one_of(st.floats(0, 1, exclude_max=True), st.floats(0, 0.02)),
    st.none() | st.integers(0, 7),
)


class Heard(logging.Handler):
    """All that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def __enter__(self) -> Heard:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


@contextmanager
def refusals(*names: str) -> Iterator[list[str]]:
    """Give the messages of errors, of which each has one of the names."""
    messages: list[str] = []
    try:
        yield messages
    except KaasError as error:
        messages.append(error.message)
    assert all(any(name in message for name in names) for message in messages), messages


# --- a server's state


async def server_left(folder: Path) -> None:
    """Make the state of a server, once as a killed one leaves it and once at its end."""
    promised = Promised()
    state = await ServerState(folder / "live").open()
    for name, value in VALUES.items():
        await state.put(promised, name, value)
    await state.put(promised, "gone", VALUES["value 1"] + 1)
    await state.delete(promised, "gone")
    for number in range(4):
        await state.register(promised, f"f{number}", add_task(100 + number))
    for function, requests in FLOWS.items():
        for number in range(requests):
            state.meter.admit("ada")
            state.meter.ended("ada", function, f"{function} {number}", "succeeded", 1, 2, 3, None)
        if len(function) == len("function 1"):  # those with two digits stay in the journal
            await state.fold()
    uploads = state.stores._uploads
    await uploads.offer("ada", protocol.Upload(1, hash_of(UNSENT), len(UNSENT), "value"))
    await uploads.chunk("ada", protocol.Chunk(2, hash_of(UNSENT), 0), UNSENT[:50_000])
    shutil.copytree(folder / "live", folder / "killed")
    await state.close()
    shutil.copytree(folder / "live", folder / "ended")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("servers")
    asyncio.run(server_left(folder))
    for left in ("killed", "ended"):
        (folder / left / "reserve").unlink()
    return folder


def copied(folder: Path, use: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, Path(place, "state"))
        use(Path(place, "state"))


async def serve(folder: Path, damaged: Path, between: bool) -> None:
    """Open a state with a damaged file, and compare what it has with what was stored.

    between: a journal was cut between two charges, as if the server had ended there.
    """
    with refusals(damaged.name, str(folder)) as refused:
        state = await ServerState(folder).open()
    if refused:
        return
    stories = [*state.stores.set_aside.stories, *state.meter.set_aside.stories]
    wrong = ""
    for name, value in VALUES.items():
        try:
            found = bytes(state.stores.objects.view(state.stores.objects.named("ada", name).ref))
        except KaasError:
            wrong += f"{name} is lost, "
        else:
            assert found == value.tobytes(), name
    assert "gone" not in state.stores.objects._names.get("ada", {}) or stories
    for number in range(4):
        try:
            assert (
                state.stores.functions.named("ada", f"f{number}").function.spec.task_key == add_task(100 + number).key
            )
        except KaasError:
            wrong += f"f{number} is lost, "
    flows = {flow.function: flow for flow in state.meter.usage("ada").flows}
    for function, requests in FLOWS.items():
        expected = FlowUsage("ada", function, requests, {"succeeded": requests}, 0, 0, requests, 2 * requests)
        if flows.get(function) != expected:
            wrong += f"{flows.get(function)} is not {expected}, "
    if extra := flows.keys() - FLOWS.keys():
        wrong += f"charges of {extra}"
    assert not wrong or stories or between, wrong
    digest = hash_of(UNSENT)
    have = (await state.stores._uploads.offer("ada", protocol.Upload(1, digest, len(UNSENT), "value"))).offset
    with refusals("turned out to be"):
        while have < len(UNSENT):
            have = (await state.stores._uploads.chunk("ada", protocol.Chunk(2, digest, have), UNSENT[have:])).offset
    await state.put(Promised(), "new", VALUES["value 1"])
    await state.close()


@given(killed=st.booleans(), damage=damages)
def test_a_servers_state(servers: Path, killed: bool, damage: Damage) -> None:
    def use(folder: Path) -> None:
        damaged = damage.apply(folder)
        journal = damage.bit is None and damaged.name.startswith(SEGMENT)
        between = journal and not any(isinstance(part, Gap) for part in charges(damaged.read_bytes()))
        asyncio.run(serve(folder, damaged, between))

    copied(servers / ("killed" if killed else "ended"), use)


def in_a_name(folder: Path) -> Path:
    """Give an object the name of another one. Return the file."""
    path = folder / "clients.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        ((number, entry),) = [
            row for row in connection.execute("SELECT id, value FROM entries").fetchall() if b"value 4" in row[1]
        ]
        changed = flipped(entry, entry.index(b"value 4") + 6)
        connection.execute("UPDATE entries SET value = ? WHERE id = ?", (changed, number))
    return path


def in_a_total(folder: Path) -> Path:
    path = folder / "usage.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE flows SET requests = requests + 1")
    return path


def in_a_charge(folder: Path) -> Path:
    path = max(folder.glob(f"{SEGMENT}*"))
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.rindex(b"function 1") + 9))
    return path


def in_an_object(folder: Path) -> Path:
    size = VALUES["value 0"].nbytes
    (path,) = [each for each in folder.glob("contents/*/*") if each.stat().st_size == size]
    path.write_bytes(flipped(path.read_bytes(), size // 2))
    return path


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("damage", [in_a_name, in_a_total, in_a_charge, in_an_object])
def test_one_bit_of_a_name_a_number_or_a_value(servers: Path, damage: Callable[[Path], Path]) -> None:
    """The file is sound for SQLite, and its entries can be decoded: only checksums tell."""

    def use(folder: Path) -> None:
        with Heard() as heard:
            asyncio.run(serve(folder, damage(folder), between=False))
        assert "damaged" in heard.text

    copied(servers / "killed", use)


# --- a pool's store

TIMES = MeasuredTimes("f", "software", "f", 0.5, 3)


def pool_left(folder: Path) -> None:
    store = SqliteStore(str(folder / "live" / "store"))
    store.open()
    registry = Registry(store)
    for task in (add_task(), scale_task(), add_task(64)):
        registry.register(specs.encode(specs.FunctionSpec(task.key)), task.to_msgpack())
    quarantine = Quarantine(0, store)
    for function in ("poison", "venom"):
        quarantine.fault(function, function, "it ended a device")
    store.put(ACCOUNTS, {client: struct.pack("<d", seconds) for client, seconds in SECONDS.items()})
    store.put(PROFILES, {"software f": msgspec.msgpack.encode(TIMES)})
    shutil.copytree(folder / "live", folder / "killed")
    store.close()
    shutil.copytree(folder / "live", folder / "ended")


SECONDS = {"ada": 1.5, "bob": 2.25}


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pools")
    pool_left(folder)
    for left in ("killed", "ended"):
        assert (folder / left / "store").exists()
    return folder


async def pool(folder: Path) -> None:
    with Heard() as heard, refusals(str(folder / "store")) as refused:
        store = opened(str(folder / "store"))
    if refused:
        return
    with heard:
        accounts = ClientAccounts(store, asyncio.get_running_loop()).charged_s()
        registry = Registry(store)
        quarantine = Quarantine(0, store)
        profiles = Profiles((), ())
        profiles.open(store)
    found = {
        each.key: registry.get(specs.FunctionSpec(each.key).key) for each in (add_task(), scale_task(), add_task(64))
    }
    for key, function in found.items():
        assert function is None or KTask.from_msgpack(function.introduction[1]).key == key
    complete = (
        accounts == SECONDS
        and None not in found.values()
        and {"poison", "venom"} == quarantine.records.keys()
        and [each.run_s for each in profiles.measured()] == [0.5]
    )
    assert accounts.items() <= SECONDS.items()
    assert complete or str(folder / "store") in heard.text, (accounts, found, quarantine.records)
    store.close()


@given(killed=st.booleans(), damage=damages)
def test_a_pools_store(pools: Path, killed: bool, damage: Damage) -> None:
    def use(folder: Path) -> None:
        damage.apply(folder)
        asyncio.run(pool(folder))

    copied(pools / ("killed" if killed else "ended"), use)


# --- single files


@given(damage=damages)
def test_a_compiled_kernel(damage: Damage) -> None:
    with tempfile.TemporaryDirectory() as place:
        cache = DiskCache(Path(place), 1 << 20)
        cache.put("kernel", bytes(range(200)))
        damage.apply(Path(place))
        assert cache.get("kernel") is None


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    for name in ("ada", "bob"):
        new_client(folder, name, folder.parent / f"{name}.toml")
    return folder


@given(damage=damages)
def test_a_folder_of_keys(keys: Path, damage: Damage) -> None:
    known = {client.public_key: client for client in Keys(keys)._clients.values()}

    def use(folder: Path) -> None:
        damaged = damage.apply(folder)
        found = {}
        with Heard() as heard, refusals(damaged.name) as refused:
            found = Keys(folder)._clients
        if refused:
            return
        others = {key: client for key, client in known.items() if f"{client.name}.toml" != damaged.name}
        assert others.items() <= found.items()
        owners = {(client.name, client.tenant) for client in known.values()}
        assert {(client.name, client.tenant) for client in found.values()} <= owners  # no other one gets its data
        assert len(found) == len(known) or damaged.name in heard.text

    copied(keys, use)
