"""An operator can check that a server's state is whole, and make a copy of it with which a server can continue."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kaas
from kaas.cli.main import app
from kaas.errors import KaasError
from kaas.server.state import state_check
from kaas.server.state.state_folder import CLIENTS
from kaas.server.usage.journal import SEGMENT
from kaas.server.usage.usage_file import NAME
from tests.api.conftest import add_task
from tests.server.conftest import Serve
from tests.server.servers import WIDTH, scaled
from tests.server.state.states import Had
from tests.timeouts import TIMEOUT_S

ONES = np.ones(WIDTH, np.float32)


def state_command(command: str, *arguments: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["state", command, *map(str, arguments)])
    if isinstance(done.exception, KaasError):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.processes
def test_a_server_can_continue_with_a_copy_of_a_running_servers_state(serve: Serve) -> None:
    server = serve()
    keys = server.folder / "alice.keys"
    copy = server.folder / "copy"
    with kaas.Client(server.endpoint, keys=keys, patience_s=TIMEOUT_S) as alice:
        alice.register(scaled(), name="f")
        alice.put("x", ONES)
        assert alice.call("f", {"x": alice.object("x")}).result()[0] == 2
        code, output = state_command("backup", server.folder / "state", copy)
        assert (code, "2 uploads" in output) == (0, True)
        code, output = state_command("check", server.folder / "state")
        assert code == 0, output
        alice.delete("x")
        alice.unregister("f")
    with pytest.raises(KaasError, match="cannot be made"):
        state_command("backup", server.folder / "state", copy)
    server.close()
    code, output = state_command("check", copy)
    assert (code, "1 charges" in output) == (0, True), output
    again = serve({"state": str(copy)})
    with kaas.Client(again.endpoint, keys=keys, patience_s=TIMEOUT_S) as alice:
        assert alice.call("f", {"x": alice.object("x")}).result()[0] == 2
        assert sum(flow["requests"] for flow in alice.usage()["flows"]) == 2


def test_a_file_without_a_table_and_a_row_that_is_no_text_are_findings(tmp_path: Path) -> None:
    empty, folder = tmp_path / "empty", tmp_path / "state"
    empty.mkdir()
    (empty / CLIENTS).touch()
    code, output = state_command("check", empty)
    assert (code, f"{CLIENTS}: no such table: entries" in output) == (1, True), output
    asyncio.run(left(folder))
    assert state_command("check", folder)[0] == 0
    with closing(sqlite3.connect(folder / CLIENTS, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE entries SET key = CAST(x'ff1b5b324a' || key AS TEXT) WHERE kind = 'objects' AND key LIKE '%/x'"
        )
    code, output = state_command("check", folder)
    assert code == 1
    assert "its checksum is wrong" in output
    assert "\x1b" not in output
    assert f"{CLIENTS}: objects" in output


def test_a_state_may_lie_anywhere(tmp_path: Path) -> None:
    """SQLite gets the path as a URI, in which some characters have a meaning."""
    folder = tmp_path / "a b#c?d%20e" / "state"
    asyncio.run(left(folder))
    code, output = state_command("check", folder)
    assert (code, "3 uploads" in output) == (0, True), output
    code, output = state_command("backup", folder, folder.with_name("copy"))
    assert (code, "3 uploads" in output) == (0, True), output


def test_a_journal_that_a_server_has_folded_meanwhile_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    asyncio.run(left(folder))
    (folder / f"{SEGMENT}7").touch()
    read = Path.read_bytes

    def folded(path: Path) -> bytes:
        if path.name == f"{SEGMENT}7":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", folded)
    code, output = state_command("check", folder)
    assert code == 0, output
    assert not (folder / f"{SEGMENT}7").exists()


def test_an_upload_that_a_server_has_removed_meanwhile_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    asyncio.run(left(folder))
    uploads = state_check._uploads

    def removed(*arguments: Any) -> list[int]:
        """Remove an upload after the check has read the entries."""
        with closing(sqlite3.connect(folder / CLIENTS)) as connection:
            ((value, row),) = connection.execute(
                "SELECT key, id FROM entries WHERE kind = 'contents' ORDER BY id LIMIT 1"
            ).fetchall()
            connection.execute("DELETE FROM entries WHERE id = ?", (row,))
            connection.commit()
        (folder / "contents" / value).unlink()
        return uploads(*arguments)

    monkeypatch.setattr(state_check, "_uploads", removed)
    code, output = state_command("check", folder)
    assert code == 0, output


def test_an_upload_that_a_server_has_added_meanwhile_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    asyncio.run(left(folder))
    uploads = state_check._uploads

    def without_one(of: Path, database: Path, known: dict[tuple[str, str], Any], *more: Any) -> list[int]:
        """Leave an upload out, as if it was added after the check has read the entries."""
        return uploads(of, database, dict(list(known.items())[1:]), *more)

    monkeypatch.setattr(state_check, "_uploads", without_one)
    code, output = state_command("check", folder)
    assert code == 0, output


async def left(folder: Path) -> None:
    async with Had(folder) as had:
        await had.put("ada", "x", ONES)
        await had.put("ada", "y", 2 * ONES)
        await had.register("ada", add_task(), "f")


def test_each_damage_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    asyncio.run(left(folder))
    (folder / NAME).touch()
    code, output = state_command("check", folder)
    assert "no such table" not in output
    x, y = sorted((path for path in folder.glob("contents/*/*")), key=lambda path: path.stat().st_size)[-2:]
    x.write_bytes(x.read_bytes()[:-1] + b"!")
    y.unlink()
    (folder / "contents" / "notes").write_text("?")
    (folder / f"{SEGMENT}x").write_text("?")
    code, output = state_command("check", folder)
    assert code == 1
    for words in ("not those that were uploaded", "contents/notes", "no part of the journal"):
        assert words in output
    data = bytearray((folder / CLIENTS).read_bytes())
    data[4096 + 3] ^= 0xFF
    (folder / CLIENTS).write_bytes(data)
    code, output = state_command("check", folder)
    assert (code, CLIENTS in output) == (1, True)
    with pytest.raises(KaasError, match="no state folder"):
        state_command("check", tmp_path)
