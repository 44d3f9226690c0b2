"""A pool whose store cannot be written goes on, and writes the newest changes later."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kaas.config import Config, Device
from kaas.errors import Quarantined
from kaas.pool import patient_store, service
from kaas.pool.core.accounts import ClientAccounts
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.pool.functions import Registry
from kaas.pool.patient_store import PatientStore
from kaas.pool.service import Service
from kaas.store import ACCOUNTS, SqliteStore
from tests.pool.fake_workers import LOST, begin, failure_of, settle
from tests.pool.program_stage import SIGNATURE, SPEC, TASK_BYTES, FakeGround, FakeRouter
from tests.timeouts import TIMEOUT_S


class FullDisk(SqliteStore):
    """Refuses changes while it is full."""

    full = False

    def _many(self, *change: Any) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super()._many(*change)


def play(folder: Path, scenario: Callable[[FullDisk], Awaitable[None]]) -> None:
    store = FullDisk(str(folder / "store"))
    store.open()
    asyncio.run(asyncio.wait_for(scenario(store), TIMEOUT_S))
    store.close()


def test_changes_are_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patient_store, "AGAIN_S", 0.0)

    async def scenario(store: FullDisk) -> None:
        patient = PatientStore(store)
        patient.put("a", {"x": b"1", "y": b"1"})
        patient.put("b", {"x": b"1"})
        store.full = True
        patient.put("a", {"y": b"2", "z": b"2"})
        patient.remove("a", ["x", "z"])
        patient.put("a", {"z": b"3"})
        patient.clear("b")
        patient.put("b", {"y": b"4"})
        await settle()
        after = ({"y": b"2", "z": b"3"}, {"y": b"4"})
        assert (patient.read("a"), patient.read("b")) == after
        assert (store.read("a"), store.read("b")) == ({"x": b"1", "y": b"1"}, {"x": b"1"})
        assert caplog.text.count("cannot be written") == 1
        assert store.path in caplog.text
        store.full = False
        while (store.read("a"), store.read("b")) != after:
            await asyncio.sleep(0)
        store.full = True
        patient.put("a", {"y": b"5"})
        patient.close()
        await settle()
        store.full = False
        patient.close()
        assert store.read("a")["y"] == b"5"

    play(tmp_path, scenario)


def test_a_pool_on_a_full_disk_answers_keeps_faults_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Router", FakeRouter)

    async def opened(store: FullDisk) -> tuple[Service, FakeGround]:
        ground = FakeGround()
        config = Config(devices=(Device(),), store=store, faults_allowed=0)
        return await Service.open("pool", config, cast(Any, ground), store), ground

    async def poisoned(pool: Service, ground: FakeGround) -> BaseException | None:
        await settle()
        answer = await begin(pool.pool.submit(WorkerCall("poison", "bob", None, 0, session="s", function="poison")))
        if not answer.done():
            ground.transport.reply(WorkerReply(error=LOST))
        return await failure_of(answer)

    async def scenario(store: FullDisk) -> None:
        pool, ground = await opened(store)
        store.full = True
        pool.registry.register(SPEC, TASK_BYTES, "s")
        assert await poisoned(pool, ground) is LOST
        assert isinstance(await poisoned(pool, ground), Quarantined)
        await settle()
        answer = await begin(pool.pool.submit(WorkerCall("f", "ada", None, 0, session="t", function="f")))
        ground.transport.reply("value")
        assert await answer == "value"
        pool.session_ended("s")
        assert pool.pool._accounts is not None
        pool.pool._accounts.write()
        charged_s = pool.pool._accounts.charged_s()
        assert charged_s.keys() == {"ada"}
        store.full = False
        pool._store.put("any", {})
        assert ClientAccounts(store, asyncio.get_running_loop()).charged_s() == charged_s
        assert Registry(store).labels == (SIGNATURE.task.label,)
        assert "poison" in Quarantine(0, store)
        store.full = True
        await pool.stop()
        store.full = False
        assert store.read(ACCOUNTS)
        store.full = True
        later, _ = await opened(store)  # its clients begin anew
        assert later.pool._accounts is not None
        assert later.pool._accounts.charged_s() == {}
        store.full = False
        await later.stop()
        assert store.read(ACCOUNTS) == {}

    play(tmp_path, scenario)
