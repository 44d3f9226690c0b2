"""On a full disk one client's upload fails and leaves nothing, all others go on, and health and the log report it."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import KaasError, UsageUnavailable
from kaas.server.state import reserve
from kaas.server.state.reserve import LEAST_BYTES, RESERVE_BYTES, Reserve
from kaas.server.state.state_folder import State
from kaas.server.usage import usage_file
from kaas.server.usage.journal import SEGMENT, Journal
from kaas.server.usage.metering import Meter
from kaas.store import SqliteStore
from tests.outcomes.disks import DISK_BYTES, can_mount, fill, on_small_disk, within
from tests.server.servers import WIDTH, Server, scaled
from tests.server.state.states import Had
from tests.timeouts import TIMEOUT_S

ONES = np.ones(WIDTH, np.float32)
FULL = r"No space left|disk is full"


def client(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


@pytest.mark.processes
def test_a_server_with_a_full_disk_still_serves_and_charges(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a disk in a namespace")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    server = Server(tmp_path, prefix=on_small_disk(state))
    seen = within(server, state)
    try:
        with client(server, "alice") as alice, client(server, "bob") as bob:
            bob.register(scaled(), name="f")
            with pytest.raises(KaasError, match=FULL):
                alice.put("large", np.zeros(DISK_BYTES, np.uint8))
            left = [path for path in seen.glob("contents/*/*") if path.stat().st_size > 1 << 20]
            assert left == []
            bob.put("x", np.zeros(2 << 20, np.uint8))  # others write on
            bob.put("y", ONES)
            assert not bob.health()["disk_full"]

            fill(seen / "another programs")
            for _ in range(50):
                assert bob.call("f", {"x": ONES}).result()[0] == 2
            while not bob.health()["disk_full"]:  # until the journal, or its file, has needed the reserve
                assert bob.call("f", {"x": ONES}).result()[0] == 2
                fill(seen / "another programs")
            assert bob.health()["ready"]
            assert "the disk is full" in server.errors.read_text()
            with pytest.raises(KaasError, match=FULL):
                alice.put("small", ONES)
            charged = sum(flow["requests"] for flow in bob.usage()["flows"])
            bob.delete("x")
            assert [entry["name"] for entry in bob.objects()] == ["y"]

            (seen / "another programs").unlink()
            assert not bob.health()["disk_full"]
            alice.put("small", ONES)
            assert bob.call("f", {"x": ONES}).result()[0] == 2
            assert sum(flow["requests"] for flow in bob.usage()["flows"]) == charged + 1
            fill(seen / "another programs")
        server.terminate()
        assert server.wait() == 0
    finally:
        server.close()


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Reserve(tmp_path)
    assert not kept.release()
    kept.open()
    assert (tmp_path / reserve.NAME).stat().st_size == RESERVE_BYTES
    assert not kept.full()
    assert kept.release()
    assert (tmp_path / reserve.NAME).stat().st_size == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        assert kept.full()
        assert not kept.release()
    assert not kept.full()
    assert kept.held
    kept.close()


def test_a_reserve_is_smaller_on_a_disk_without_room_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, at, size: no_room() if size > 1 << 20 else take(fd, at, size))
    kept = Reserve(tmp_path)
    kept.open()
    assert kept.held
    assert LEAST_BYTES <= (tmp_path / reserve.NAME).stat().st_size <= 1 << 20
    kept.close()


def in_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(test(tmp_path, monkeypatch))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def test_charges_are_written_in_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(charge_on_a_full_disk(tmp_path, monkeypatch))


async def charge_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(tmp_path)
    meter.open()
    write = Journal.write

    def limited(journal: Journal, charge: Any) -> None:
        if meter.reserve.held:
            no_room()
        write(journal, charge)

    monkeypatch.setattr(Journal, "write", limited)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    meter.admit("a")
    assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
    assert meter.reserve.full()
    assert meter.able()
    monkeypatch.setattr(Journal, "write", no_room)
    meter.admit("a")
    with pytest.raises(KaasError):
        meter.ended("a", "f", "l", "succeeded", 1, 1, 2, None)
    assert not meter.able()
    monkeypatch.undo()
    assert not meter.reserve.full()
    assert meter.able()  # though no request has been charged since
    await meter.close()


@in_loop
async def test_a_server_that_cannot_write_for_another_reason_is_not_able(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(folder)
    meter.open()
    open_file = os.open

    def refused(path: Any, flags: int, *more: Any) -> int:
        if SEGMENT in str(path):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return open_file(path, flags, *more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        meter.admit("a")
        with pytest.raises(UsageUnavailable):
            meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
        assert not meter.able()
        assert not meter.able()
    assert meter.able()
    meter.admit("a")
    assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
    meter.unable = "the last charge could not be written"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_room)
        assert not meter.able()
    assert meter.able()
    await meter.close()
    assert [flow.requests for flow in usage_file.read_usage(folder).flows] == [1]


@in_loop
async def test_usage_is_opened_and_closed_in_the_reserve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(folder)
    write = usage_file._write

    def limited(connection: sqlite3.Connection, changes: usage_file.Changes) -> None:
        write(connection, changes)
        if meter.reserve.held:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    monkeypatch.setattr(usage_file, "_write", limited)
    meter.open()
    assert meter.reserve.used
    assert not meter.reserve.full()
    meter.admit("a")
    assert meter.ended("a", "f", "k", "succeeded", 1, 1, 2, None)
    await meter.close()
    assert [flow.requests for flow in usage_file.read_usage(folder).flows] == [1]
    assert not list(folder.glob(SEGMENT + "*"))


def test_a_limit_on_the_size_of_files_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "posix_fallocate", too_large)
    with pytest.raises(UsageUnavailable, match="File too large"):
        Meter(tmp_path).open()
    monkeypatch.undo()
    meter = Meter(tmp_path)
    meter.open()  # the lock was given back
    asyncio.run(meter.close())


def test_clients_state_is_opened_in_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Reserve(tmp_path)
    room.open()
    open_file = SqliteStore.open

    def limited(store: SqliteStore) -> None:
        if room.held:
            no_room()
        open_file(store)

    monkeypatch.setattr(SqliteStore, "open", limited)
    state = State(tmp_path, room)
    state.open()
    state.put("kind", "ada", "x", b"x")
    state.close()
    room.close()


def test_an_upload_that_finds_the_disk_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(put_on_a_full_disk(tmp_path, monkeypatch))


async def put_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Had(tmp_path) as had:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", no_room)
            for value in (ONES, np.zeros(1 << 20, np.uint8)):
                with pytest.raises(KaasError, match="No space left"):
                    await had.put("ada", "x", value)
        assert not list(tmp_path.glob("contents/*/*"))
        assert had.held["ada", "objects"] == 0
        await had.put("ada", "x", ONES)
