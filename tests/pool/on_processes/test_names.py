"""Running pools without Ray are found by their names, killed ones are not; folders of other users are refused."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from kaas.errors import InvalidConfig
from kaas.pool.on_processes.names import PoolName, PoolNotice, running_names
from kaas.wire.messages import Address


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def notice(folder: Path) -> PoolNotice:
    folder.mkdir()
    return PoolNotice(Address("life", "here", f"ipc://{folder}/pool"), "here", {"slots": "1"})


def test_a_pool_is_found_by_its_name_until_it_withdraws(runtime: Path) -> None:
    place, said = PoolName("a/b"), notice(runtime / "sockets")
    assert place.running() is None
    file = place.announce(said)
    assert PoolName("a/b").running() == said
    assert PoolName("other").running() is None
    PoolName.withdraw(file)
    waiting = threading.Thread(target=lambda: seen.append(PoolName("a/b").running()))
    seen: list[PoolNotice | None] = []
    waiting.start()
    os.close(file)
    waiting.join()
    assert seen == [None]


def test_a_pool_that_cannot_write_its_notice_does_not_start(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = notice(runtime / "sockets")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda _, data, __: len(data) // 2)
        with pytest.raises(InvalidConfig, match=r"p\.pool: No space left"):
            PoolName("p").announce(said)
    assert PoolName("p").running() is None
    file = PoolName("p").announce(said)
    assert PoolName("p").running() == said
    os.close(file)


def test_the_notice_of_a_killed_pool_is_ignored(runtime: Path) -> None:
    long, short = notice(runtime / ("long" * 20)), notice(runtime / "short")
    os.close(PoolName("same").announce(long))  # its process ends: nothing is locked
    assert PoolName("same").running() is None
    file = PoolName("same").announce(short)
    assert PoolName("same").running() == short
    os.close(file)


def test_one_program_at_a_time_looks(runtime: Path) -> None:  # noqa: ARG001 - where it looks
    inside, order = threading.Event(), []

    def look() -> None:
        inside.set()
        with PoolName("p").locked():
            order.append("second")

    with PoolName("p").locked():
        other = threading.Thread(target=look)
        other.start()
        inside.wait()
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_a_folder_that_others_can_enter_is_refused(runtime: Path) -> None:
    (runtime / "kaas").mkdir(mode=0o755)
    with pytest.raises(InvalidConfig, match=r"open to other users.* Set XDG_RUNTIME_DIR"):
        PoolName("p")


def test_a_folder_that_another_user_has_made_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime / "kaas").mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(InvalidConfig, match=r"another user's.* Set XDG_RUNTIME_DIR"):
        PoolName("p")


def test_a_name_that_is_none_for_a_file_is_refused(runtime: Path) -> None:  # noqa: ARG001 - where it looks
    with pytest.raises(InvalidConfig, match="cannot be named"):
        PoolName("x" * 1000).running()


def test_a_name_that_is_no_text_is_refused(runtime: Path) -> None:  # noqa: ARG001 - where it looks
    with pytest.raises(InvalidConfig, match="the name of a pool is a text"):
        PoolName("\udcff")


def test_without_a_runtime_folder_there_is_one_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    PoolName("p")
    assert (tmp_path / f"kaas-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["pipe", "link", "garbage"])
def test_a_file_that_is_no_notice_is_named_and_nothing_waits(runtime: Path, kind: str) -> None:
    place = PoolName("p")
    file = runtime / "kaas" / "p.pool"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(runtime / "elsewhere")
    else:
        file.write_bytes(b"garbage")
    with file.open("rb") if kind == "garbage" else nullcontext() as held:
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_EX)  # as a running pool's
        with pytest.raises(InvalidConfig, match=r"p\.pool"):
            place.running()
    assert running_names() == []


def test_a_pool_that_is_ending_runs_no_more(runtime: Path) -> None:
    file = PoolName("p").announce(notice(runtime / "sockets"))
    PoolName.withdraw(file)
    assert PoolName("p").running(wait=False) is None
    os.close(file)
