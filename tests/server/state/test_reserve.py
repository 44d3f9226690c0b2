"""The reserve on a server's disk, from two threads at a time."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kaas.server.state.mending import is_damage
from kaas.server.state.reserve import Reserve, is_full
from kaas.server.usage.journal import Journal
from kaas.server.usage.usage import Charge

CHARGE = Charge("alice", "double", "key", "succeeded", 1, 2, 3, 4, 5)


@pytest.fixture
def reserve(tmp_path: Path) -> Iterator[Reserve]:
    reserve = Reserve(tmp_path)
    reserve.open()
    yield reserve
    reserve.close()


class Disk:
    """Refuses the first writes with an error, and counts the calls."""

    def __init__(self, refused: int, code: int = errno.ENOSPC) -> None:
        self.refused, self.code, self.calls = refused, code, 0

    def write(self) -> str:
        self.calls += 1
        if self.calls <= self.refused:
            raise OSError(self.code, "refused")
        return "written"


def test_a_write_succeeds_in_the_room_of_the_reserve(reserve: Reserve) -> None:
    assert reserve.with_room(Disk(1).write) == "written"
    assert not reserve.held
    assert not reserve.full()
    assert reserve.held


def test_a_write_succeeds_in_room_that_another_thread_released_meanwhile(reserve: Reserve) -> None:
    disk = Disk(1)

    def write() -> str:
        if not disk.calls:
            assert reserve.release()
        return disk.write()

    assert reserve.with_room(write) == "written"


@pytest.mark.parametrize(("disk", "calls"), [(Disk(2), 2), (Disk(1, errno.EIO), 1)])
def test_a_write_fails_without_room_and_for_other_reasons(reserve: Reserve, disk: Disk, calls: int) -> None:
    with pytest.raises(OSError, match="refused"):
        reserve.with_room(disk.write)
    assert disk.calls == calls


def test_a_charge_of_which_a_part_fits_is_written_whole_in_the_room_of_the_reserve(
    reserve: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, write = Journal(tmp_path, 1), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7] if reserve.held else data))
    reserve.with_room(lambda: journal.write(CHARGE))
    assert not reserve.held
    assert journal.path.stat().st_size == journal.size_bytes > 7
    journal.close()


def test_a_reserve_that_is_used_up_helps_no_second_time(reserve: Reserve) -> None:
    assert reserve.release()
    disk = Disk(1)
    with pytest.raises(OSError, match="refused"):
        reserve.with_room(disk.write)
    assert disk.calls == 1


def test_shared_memory_of_sqlite_without_room_is_a_full_disk_and_no_damage() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert is_full(error)
    assert not is_damage(error)
    for code in (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        error.sqlite_errorcode = code
        assert is_damage(error)
