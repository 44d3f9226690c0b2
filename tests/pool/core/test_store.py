"""The state that outlives a pool's process: entries of a store, and the functions and accounts made of them."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kaas.config import ClientSettings, Config
from kaas.errors import InvalidConfig, KaasError
from kaas.pool import functions
from kaas.pool.core import accounts
from kaas.pool.core.accounts import ClientAccounts, client_known
from kaas.pool.functions import Registry
from kaas.scheduling.events import ClientKnown
from kaas.store import ACCOUNTS, FUNCTIONS, TASKS, SqliteStore, Store, opened
from kaas.store.wal import SHARED, WAL
from kaas.wire import specs
from tests.api.conftest import add_task, scale_task


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(tmp_path / "folder" / "store"))
    made.open()
    yield made
    made.close()


def reopened(store: SqliteStore) -> SqliteStore:
    """Open a store as the next process of a pool does, after a kill without `close`."""
    again: SqliteStore = pickle.loads(pickle.dumps(store))
    again.open()
    return again


def test_entries_are_there_for_the_next_process(store: SqliteStore) -> None:
    store.put("a", {"x": b"1", "y": b"2"})
    store.put("b", {"x": b"3"})
    store.put("a", {"x": b"4", "z": b"5"})
    again = reopened(store)
    assert again == store
    assert list(again.read("a").items()) == [("x", b"4"), ("y", b"2"), ("z", b"5")]
    again.remove("a", ["y", "unknown"])
    assert list(store.read("a")) == ["x", "z"]
    store.clear("a", "c")
    assert (again.read("a"), again.read("b")) == ({}, {"x": b"3"})
    again.close()


def test_a_loss_of_power_damages_nothing(store: SqliteStore) -> None:
    """With these two settings, SQLite may lose the newest changes, and no more."""
    connection = store._connection
    assert connection is not None
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL"


def test_a_failed_change_changes_nothing_and_the_next_change_works(store: SqliteStore) -> None:
    store.put("a", {"x": b"1"})
    with pytest.raises(sqlite3.Error):
        store.put("a", {"x": b"2", object(): b"3"})  # type: ignore[dict-item]
    store.put("a", {"z": b"3"})
    assert store.read("a") == {"x": b"1", "z": b"3"}


def test_a_damaged_value_is_left_out_and_named(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    store.put("a", {"x": b"1", "y": b"2", "z": b"3"})
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("UPDATE entries SET value = (SELECT value FROM entries WHERE key = 'y') WHERE key = 'x'")
        connection.execute("INSERT INTO entries (kind, key, value) VALUES ('a', 'old', x'07')")
        connection.commit()
    assert store.read("a") == {"y": b"2", "z": b"3", "old": b"\x07"}
    assert f"{store.path} is left out: a x" in caplog.text


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made = SqliteStore(str(path))
    made.open()
    made.put("a", {str(number): bytes(2000) for number in range(9)})
    killed = {end: path.with_name(path.name + end).read_bytes() for end in ("", WAL, SHARED)}
    made.close()
    whole = path.read_bytes()
    for data in (whole[:5000], whole[:18] + b"\x82" + whole[19:], whole[:4096] + b"?" * 100 + whole[4196:]):
        path.write_bytes(data)
        with pytest.raises(InvalidConfig, match=str(path)):
            opened(str(path))
        path.with_name(path.name + SHARED).unlink(missing_ok=True)
    for end, data in killed.items():
        path.with_name(path.name + end).write_bytes(data[:-5000] if end == WAL else data)
    with pytest.raises(InvalidConfig, match=f"{path}{WAL}: it ends after"):
        opened(str(path))


def test_a_store_is_a_file_or_an_object(store: SqliteStore) -> None:
    assert isinstance(store, Store)
    given = Config(store=store)
    assert pickle.loads(pickle.dumps(given)).differences(given) == ()
    assert given.differences(Config(store="elsewhere")) == ("store",)
    with pytest.raises(InvalidConfig):
        Config(store=7)  # type: ignore[arg-type]


# --- functions


def register(known: Registry, task_key: str, task: bytes, *bindings: specs.Binding, session: str | None = None) -> str:
    spec = specs.FunctionSpec(task_key, bindings)
    known.register(specs.encode(spec), task, session)
    return spec.key


def test_functions_are_known_after_a_restart(store: SqliteStore) -> None:
    first, add = Registry(store), add_task()
    plain = register(first, add.key, add.to_msgpack())
    bound = register(first, add.key, add.to_msgpack(), specs.Binding("a", 0))
    register(first, add.key, add.to_msgpack())
    second = Registry(reopened(store))
    assert second.labels == first.labels == (add.label, add.label)
    for key in (plain, bound):
        known, before = second.get(key), first.get(key)
        assert known is not None
        assert before is not None
        assert (known.key, known.spec, known.outputs) == (key, before.spec, before.outputs)
        assert known.introduction == before.introduction == (specs.encode(known.spec), add.to_msgpack())
    assert second.get(scale_task().key) is None


def test_a_function_may_be_registered_after_it_is_requested(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = scale_task()

    async def main() -> None:
        known = Registry(store)
        waiting = asyncio.ensure_future(known.registered(scale.key))
        await asyncio.sleep(0)
        register(known, scale.key, scale.to_msgpack())
        assert (await waiting).key == scale.key
        monkeypatch.setattr(functions, "REGISTRATION_LIMIT_S", 0)
        with pytest.raises(KaasError, match="does not know"):
            await known.registered("nobody's")

    asyncio.run(main())


def test_a_malformed_function_is_not_stored(store: SqliteStore) -> None:
    known, add, scale = Registry(store), add_task(), scale_task()
    for key, task, *bindings in (
        (add.key, b"no kTask"),
        (add.key, scale.to_msgpack()),
        (add.key, add.to_msgpack(), specs.Binding("none of its inputs", 0)),
    ):
        with pytest.raises(KaasError):
            register(known, key, task, *bindings)
    assert Registry(reopened(store)).labels == ()
    register(known, add.key, add.to_msgpack())
    assert Registry(reopened(store)).labels == (add.label,)


def test_a_function_without_its_task_is_not_known(store: SqliteStore) -> None:
    scale = scale_task()
    register(Registry(store), scale.key, scale.to_msgpack())
    store.clear(TASKS)
    assert Registry(store).labels == ()
    assert len(store.read(FUNCTIONS)) == 1


def test_a_damaged_function_is_not_known(store: SqliteStore) -> None:
    add, scale = add_task(), scale_task()
    for task in (add, scale):
        register(Registry(store), task.key, task.to_msgpack())
    store.put(TASKS, {add.key: scale.to_msgpack()})
    assert Registry(store).labels == (scale.label,)
    store.put(FUNCTIONS, {"another": b"?"})
    store.put(TASKS, {scale.key: b"?"})
    assert Registry(store).labels == ()


def test_functions_of_ended_sessions_are_forgotten(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    known, add, scale = Registry(store), add_task(), scale_task()
    monkeypatch.setattr(functions, "UNUSED_BYTES", len(add.to_msgpack()))
    plain = register(known, add.key, add.to_msgpack(), session="a")
    bound = register(known, add.key, add.to_msgpack(), specs.Binding("a", 0), session="b")
    other = register(known, scale.key, scale.to_msgpack(), session="a")
    register(known, scale.key, scale.to_msgpack(), session="b")
    known.session_ended("a")
    assert [known.get(key) is not None for key in (plain, bound, other)] == [True] * 3
    known.session_ended("b")
    assert [known.get(key) is not None for key in (plain, bound, other)] == [False, False, True]
    assert [*store.read(FUNCTIONS)] == [other]
    assert [*store.read(TASKS)] == [scale.key]
    register(known, add.key, add.to_msgpack(), session="c")
    register(known, scale.key, scale.to_msgpack())
    known.session_ended("c")
    assert known.get(plain) is not None
    assert register(known, add.key, add.to_msgpack(), session="c") == plain
    monkeypatch.setattr(functions, "UNUSED_BYTES", 0)
    known.session_ended("c")
    assert known.get(plain) is None
    assert Registry(reopened(store)).labels == (scale.label,)


def test_a_lent_function_is_also_a_programs(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    known, add = Registry(store), add_task()
    monkeypatch.setattr(functions, "UNUSED_BYTES", 0)
    spec = specs.FunctionSpec(add.key)
    known.lend(spec, add, add.to_msgpack(), "lent")
    register(known, add.key, add.to_msgpack(), session="a")
    known.give_back(spec.key, "lent")
    assert known.get(spec.key) is not None
    known.lend(spec, add, add.to_msgpack(), "lent")
    known.session_ended("a")
    assert known.get(spec.key) is not None
    known.give_back(spec.key, "lent")
    assert known.labels == ()


def test_a_clients_function_is_listed_with_its_client(store: SqliteStore) -> None:
    known, add = Registry(store), add_task()
    for client in ("ann", "bob"):
        known.lend(specs.FunctionSpec(add.key, (), client), add, add.to_msgpack(), "f")
    assert known.labels == ("f of ann", "f of bob")


# --- accounts


def test_accounts_continue_after_a_restart(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "WRITE_EVERY_S", 0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        charged = ClientAccounts(store, loop)
        for client, seconds in (("alice", 0.25), ("bob", 1.0), ("alice", 0.5)):
            charged.charge(client, seconds)
        assert store.read(ACCOUNTS) == {}  # not with each request
        while not store.read(ACCOUNTS):
            await asyncio.sleep(0)
        again = ClientAccounts(reopened(store), loop)
        assert again.charged_s() == charged.charged_s() == {"alice": 0.75, "bob": 1.0}
        again.forget("bob")
        assert ClientAccounts(store, loop).charged_s() == {"alice": 0.75}

    asyncio.run(main())


def test_a_client_that_is_forgotten_is_not_written(store: SqliteStore) -> None:
    async def main() -> None:
        charged = ClientAccounts(store, asyncio.get_running_loop())
        charged.charge("alice", 1.0)
        charged.charge("bob", 1.0)
        charged.forget("alice")
        charged.write()
        assert list(store.read(ACCOUNTS)) == ["bob"]

    asyncio.run(main())


def test_client_known_has_the_settings_and_the_charges_of_a_client() -> None:
    assert client_known(1.0, "alice", None, 0.5) == ClientKnown(1.0, "alice", charged_s=0.5)
    settings = ClientSettings(2.0, 1, 3, 0.5, 7)
    assert client_known(1.0, "bob", settings, 0.0) == ClientKnown(1.0, "bob", 2.0, 1, 3, 0.5)
