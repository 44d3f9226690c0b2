"""A damaged write-ahead log loses the rows of the damaged page only, and a log that a crash has cut is no damage."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kaas.server.state.mending import mend
from kaas.server.state.set_aside import FOLDER, SetAside
from kaas.store import SCHEMA, TABLES, SqliteStore
from kaas.store.wal import PAGE_BYTES, SHARED, WAL, log_damage

HEADER, FRAME = 32, 24 + PAGE_BYTES
TRANSACTIONS = 4

Rows = dict[str, bytes]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file and its log, as a killed process leaves them: transactions of three pages or more."""
    folder = tmp_path_factory.mktemp("killed")
    store = SqliteStore(str(folder / "open"))
    store.open()
    for number in range(TRANSACTIONS):
        store.put("kind", {f"{number}.{part}": bytes([number]) * 2000 for part in range(4)})
    for end in ("", WAL, SHARED):
        shutil.copyfile(folder / f"open{end}", folder / f"left{end}")
    store.close()
    return folder


def left(killed: Path, tmp_path: Path) -> Path:
    for end in ("", WAL):
        shutil.copyfile(killed / f"left{end}", tmp_path / f"file{end}")
    return tmp_path / "file"


def mended(path: Path) -> tuple[Rows, int]:
    """Return the rows of a file after its repair, and the number of stories."""
    set_aside = SetAside(path.parent)
    mend(path, SCHEMA, TABLES, set_aside.file)
    store = SqliteStore(str(path))
    store.open()
    rows = store.read("kind")
    store.close()
    return rows, set_aside.count


def ends(log: bytes) -> Iterator[int]:
    """The numbers of the frames that end a transaction."""
    for number in range((len(log) - HEADER) // FRAME):
        at = HEADER + number * FRAME
        if log[at + 4 : at + 8] != bytes(4):
            yield number


def places(frame: int) -> list[int]:
    """A byte in each field of a frame, and some in its page."""
    return [HEADER + frame * FRAME + at for at in (0, 5, 9, 13, 18, 22, 24 + 100, 24 + 3000)]


def test_a_sound_log_is_used(killed: Path, tmp_path: Path) -> None:
    rows, stories = mended(left(killed, tmp_path))
    assert (len(rows), stories) == (4 * TRANSACTIONS, 0)


@pytest.mark.slow
def test_one_flipped_bit_loses_few_rows_and_tells(killed: Path, tmp_path: Path) -> None:
    log = (killed / f"left{WAL}").read_bytes()
    before = [0, 9, 14, 17, 20, 25, 30]
    last = list(ends(log))[-1]
    for at in [*before, *[at for frame in range(last + 1) for at in places(frame)][::5]]:
        folder = tmp_path / str(at)
        folder.mkdir()
        path = left(killed, folder)
        damaged = bytearray(log)
        damaged[at] ^= 1
        path.with_name(path.name + WAL).write_bytes(damaged)
        assert log_damage(path), at
        rows, stories = mended(path)
        assert stories, at
        assert len(rows) >= 2 * TRANSACTIONS, at
        assert all(set(value) == {int(key[0])} or not value for key, value in rows.items()), at
        assert any(each.read_bytes() == damaged for each in (folder / FOLDER).glob(f"*{WAL}"))
        assert mended(path) == (rows, 0), at


@pytest.mark.slow
def test_a_log_that_a_crash_has_cut_is_no_damage(killed: Path, tmp_path: Path) -> None:
    log = (killed / f"left{WAL}").read_bytes()
    frames = (len(log) - HEADER) // FRAME
    for size in [0, 10, *(HEADER + FRAME * frame + at for frame in range(frames) for at in (0, 9, 24, 900))]:
        folder = tmp_path / str(size)
        folder.mkdir()
        path = left(killed, folder)
        path.with_name(path.name + WAL).write_bytes(log[:size])
        assert log_damage(path) == ""
        rows, stories = mended(path)
        assert stories == 0
        assert len(rows) == 4 * max(0, sum(HEADER + FRAME * (end + 1) <= size for end in ends(log)) - 1)


def test_a_log_that_was_cut_after_the_process_was_killed_is_damage(killed: Path, tmp_path: Path) -> None:
    """The index, which the process left, has the number of its frames."""
    log = (killed / f"left{WAL}").read_bytes()
    for size in (0, 10, HEADER + 10, HEADER + FRAME, HEADER + FRAME * 3 + 9, len(log) - FRAME, len(log) - 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = left(killed, folder)
        shutil.copyfile(killed / f"left{SHARED}", path.with_name(path.name + SHARED))
        assert log_damage(path) == ""
        path.with_name(path.name + WAL).write_bytes(log[:size])
        assert "frames" in log_damage(path), size
        rows, stories = mended(path)
        assert stories, size
        assert len(rows) == 4 * max(0, sum(HEADER + FRAME * (end + 1) <= size for end in ends(log)) - 1)
        assert mended(path) == (rows, 0)


def test_frames_of_an_earlier_log_behind_the_newest_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store = SqliteStore(str(tmp_path / "open"))
    store.open()
    store.put("kind", {str(number): b"1" * 3000 for number in range(20)})
    with closing(sqlite3.connect(tmp_path / "open")) as other:
        other.execute("PRAGMA wal_checkpoint(RESTART)")
    store.put("kind", {"new": b"2"})
    for end in ("", WAL):
        shutil.copyfile(tmp_path / f"open{end}", tmp_path / f"file{end}")
    store.close()
    assert log_damage(path) == ""
    log = bytearray(path.with_name(path.name + WAL).read_bytes())
    salts = bytes(log[16:24])
    newest = [at for at in range(HEADER, len(log), FRAME) if log[at + 8 : at + 16] == salts]
    assert HEADER + len(newest) * FRAME < len(log), "older frames are behind them"
    log[newest[-1] + 1000] ^= 1  # a crash has cut it
    path.with_name(path.name + WAL).write_bytes(log)
    assert log_damage(path) == ""
    rows, stories = mended(path)
    assert (len(rows), stories) == (20, 0)


def test_the_log_of_a_missing_file_is_set_aside(killed: Path, tmp_path: Path) -> None:
    path = left(killed, tmp_path)
    path.unlink()
    assert mended(path) == ({}, 1)
    assert [each.read_bytes() for each in (tmp_path / FOLDER).glob(f"*{WAL}")] == [(killed / f"left{WAL}").read_bytes()]


def test_the_first_page_of_a_young_file_is_made_again(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "open"))
    store.open()
    store.put("kind", {"key": b"value"})
    for end in ("", WAL):
        shutil.copyfile(tmp_path / f"open{end}", tmp_path / f"file{end}")
    store.close()
    log = bytearray((tmp_path / f"file{WAL}").read_bytes())
    log[200] ^= 1
    (tmp_path / f"file{WAL}").write_bytes(log)
    assert mended(tmp_path / "file") == ({"key": b"value"}, 2)
