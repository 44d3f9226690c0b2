"""With any damage of its state's files, a server starts, serves the sound parts, and reports the damaged ones."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.errors import KaasError, StateUnavailable
from kaas.server.state.mending import MENDED, damage
from kaas.server.state.reserve import Reserve
from kaas.server.state.state_check import check
from kaas.server.state.state_folder import CLIENTS
from kaas.server.usage.journal import SEGMENT
from kaas.server.usage.metering import Meter
from kaas.server.usage.usage import FlowUsage
from kaas.server.usage.usage_file import NAME, TABLES, Changes, UsageFile, read_usage
from kaas.store.wal import WAL
from kaas.wire import protocol
from tests.api.conftest import add_task
from tests.server.conftest import Serve
from tests.server.servers import WIDTH, Server, scaled
from tests.server.state.states import Had, hash_of
from tests.timeouts import TIMEOUT_S

PAGE = 4096
VALUES = {f"value {number}": np.full(20_000, number, np.float32) for number in range(12)}


async def left(folder: Path) -> None:
    """Write the data of two clients at a server."""
    async with Had(folder) as had:
        for client in ("ada", "bob"):
            for name, value in VALUES.items():
                await had.put(client, name, value)
            for number in range(12):
                await had.register(client, add_task(), f"f{number}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "state"
    asyncio.run(left(folder))
    assert (folder / CLIENTS).stat().st_size > 3 * PAGE
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "state")
    return tmp_path / "state"


async def served(folder: Path) -> tuple[int, int, int, list[str]]:
    """Return the numbers of values and functions of a server, each checked; the number of its stories; and the parts
    that it has set aside."""
    async with Had(folder) as had:
        values = functions = 0
        for client in ("ada", "bob"):
            for name, value in VALUES.items():
                try:
                    assert await had.get(client, name) == value.tobytes()
                except KaasError:
                    continue
                values += 1
            for number in range(12):
                try:
                    assert had.functions.named(client, f"f{number}").key == add_task().key
                except KaasError:
                    continue
                functions += 1
        aside = sorted(path.name for path in (folder / "set-aside").glob("*")) if had.state.damaged else []
        await had.put("eve", "new", VALUES["value 1"])  # it can be written to
        return values, functions, had.state.set_aside.count, aside


def serve_twice(folder: Path) -> tuple[int, int, int, list[str]]:
    """Start a server twice: the second time it finds no damage."""
    found = asyncio.run(served(folder))
    again = asyncio.run(served(folder))
    assert again[:3] == (*found[:2], 0)
    return found


def places(path: Path) -> Iterator[int]:
    """A byte in each page of a file, and some of its header."""
    yield from (0, 17, 18, 27, 100, 105)
    yield from range(PAGE + 3, path.stat().st_size, PAGE)
    yield from range(2 * PAGE - 20, path.stat().st_size, PAGE)


@pytest.mark.slow
def test_a_flipped_byte_loses_few_rows(made: Path, tmp_path: Path) -> None:
    lost = []
    for number, at in enumerate(places(made / CLIENTS)):
        folder = tmp_path / str(number)
        shutil.copytree(made, folder)
        data = bytearray((folder / CLIENTS).read_bytes())
        data[at] ^= 0x5A
        (folder / CLIENTS).write_bytes(data)
        values, functions, stories, aside = serve_twice(folder)
        assert (values, functions) == (24, 24) or (stories and aside), at
        lost.append(48 - values - functions)
        shutil.rmtree(folder)
    assert sum(each > 24 for each in lost) <= 1, lost  # the root of a table's tree: no row is found without it
    assert sum(lost) / len(lost) < 8, lost


@pytest.mark.parametrize("size", [0, 1, 10, PAGE, PAGE + 100, 3 * PAGE])
def test_a_file_that_was_cut(folder: Path, size: int) -> None:
    uploads = {path.name for path in (folder / "contents").glob("*/*")}
    with (folder / CLIENTS).open("r+b") as file:
        file.truncate(size)
    _, _, stories, aside = serve_twice(folder)
    assert stories
    kept = {path.name for path in (folder / "contents").glob("*/*")}
    assert all(name in kept or any(name in each for each in aside) for name in uploads)  # nothing is thrown away


def test_a_file_that_is_missing(folder: Path) -> None:
    (folder / CLIENTS).unlink()
    values, functions, stories, aside = serve_twice(folder)
    assert (values, functions) == (0, 0)
    assert stories
    assert aside


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def killed(folder: Path, to: Path) -> None:
    """Write the data of a client, and copy it as a killed server leaves it."""
    async with Had(folder) as had:
        for name, value in VALUES.items():
            await had.put("ada", name, value)
        shutil.copytree(folder, to)


@pytest.mark.parametrize("at", [20, 200, PAGE + 2000, -PAGE + 10])
def test_a_flipped_bit_in_the_log_of_a_killed_server(tmp_path: Path, at: int) -> None:
    asyncio.run(killed(tmp_path / "made", folder := tmp_path / "state"))
    uploads = {path.name for path in (folder / "contents").glob("*/*")}
    flip(folder / (CLIENTS + WAL), at % (folder / (CLIENTS + WAL)).stat().st_size)
    values, _, stories, aside = serve_twice(folder)
    assert values >= 11  # but for one page, all of them
    assert stories
    kept = {path.name for path in (folder / "contents").glob("*/*")}
    assert all(name in kept or any(name in each for each in aside) for name in uploads)  # nothing is thrown away


def test_an_upload_that_had_just_begun_leaves_nothing(tmp_path: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(tmp_path) as had:
            await had.uploads.offer("ada", protocol.Upload(1, "0" * 64, 1 << 20, "value"))
            part = had.uploads.blobs.find("ada", "0" * 64).part  # type: ignore[union-attr]
            part.touch()
        async with Had(tmp_path) as had:
            assert had.uploads.blobs.find("ada", "0" * 64) is None
            assert not part.exists()
            assert not had.state.damaged

    asyncio.run(restart_scenario())


def test_an_interrupted_repair_is_done_after_a_restart(folder: Path) -> None:
    shutil.copy(folder / CLIENTS, folder / (CLIENTS + MENDED))
    (folder / CLIENTS).write_bytes(b"?" * 10_000)
    assert serve_twice(folder)[:2] == (24, 24)


def test_a_row_that_makes_no_sense_is_set_aside_alone(folder: Path) -> None:
    with closing(sqlite3.connect(folder / CLIENTS)) as connection:
        for kind in ("objects", "remote functions", "contents"):
            connection.execute("UPDATE entries SET value = x'00ff' WHERE id = (SELECT min(id) FROM entries"
                               " WHERE kind = ?)", (kind,))  # fmt: skip
        connection.execute("INSERT INTO entries (kind, key, value) VALUES ('answers', 'somebody/x', 'text')")
        connection.commit()
    values, functions, stories, aside = serve_twice(folder)
    assert values >= 22
    assert functions >= 12  # one, or those of the library that nothing refers to any more
    assert stories >= 4
    assert len(aside) >= 8


def test_stray_files_are_set_aside(folder: Path) -> None:
    contents = folder / "contents"
    (contents / "notes.txt").write_text("an operator's")
    home = next(contents.iterdir()) if next(contents.iterdir()).is_dir() else sorted(contents.glob("*/"))[0]
    (home / "backup").mkdir()
    (home / "backup" / "old").write_text("old")
    (home / "link").symlink_to("/etc/passwd")
    values, functions, stories, aside = serve_twice(folder)
    assert (values, functions, stories) == (24, 24, 3)
    assert {name.rpartition("-")[2] for name in aside} >= {"notes.txt", "backup", "link"}


def test_an_upload_that_was_damaged_can_be_sent_again(folder: Path) -> None:
    async def restart_scenario() -> None:
        async with Had(folder) as had:
            content = had.values.named("ada", "value 1").content
            library = next(path for path in content.path.parent.iterdir() if path.stat().st_size < 10_000)
        for path in (content.path, library):
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        async with Had(folder) as had:
            assert len(had.state.set_aside.stories) >= 3  # both files, and the object
            value = VALUES["value 1"]
            assert await had.upload("ada", value.tobytes()) == hash_of(value.tobytes())
            await had.values.put(
                "ada", protocol.Put(1, "value 1", "float32", value.shape, hash_of(value.tobytes())), None
            )
            assert await had.get("ada", "value 1") == value.tobytes()
            assert (await had.register("ada", add_task(), "f0")).function == add_task().key
            assert had.functions.named("bob", "f0")

    asyncio.run(restart_scenario())


# --- the check, which reads what a server would recover


def test_the_check_reads_the_rows_that_a_server_recovers(folder: Path) -> None:
    with (folder / CLIENTS).open("r+b") as file:
        file.seek(4 * PAGE)
        file.write(bytes(100))
    upload = max(folder.glob("contents/*/*"), key=lambda path: path.stat().st_size)
    flip(upload, 100)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = check(folder)
    assert {path: path.read_bytes() for path in before} == before
    places = {finding.place for finding in found.findings}
    assert {CLIENTS, str(upload.relative_to(folder))} <= places
    (damage_found,) = (finding.what for finding in found.findings if finding.place == CLIENTS)
    assert f"{found.entries} of its rows could be read" in damage_found
    lost_with_upload = [place for place in places if place.startswith(f"{CLIENTS}: 'value")]

    async def restart_scenario() -> list[str]:
        async with Had(folder) as had:
            return had.state.set_aside.stories

    stories = asyncio.run(restart_scenario())
    assert f"{CLIENTS} was set aside: {damage_found}" in stories
    lost = [story for story in stories if "its entry is lost" in story]
    assert len(lost) == sum(finding.what == "no entry refers to it" for finding in found.findings) < 20
    assert len(lost_with_upload) == sum("its value is not what was put" in story for story in stories)
    assert found.uploads > len(lost)


def test_the_check_counts_the_usage_that_a_server_recovers(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path / "made"))
    flip(tmp_path / "made" / NAME, 6 * PAGE + 5)
    found = check(tmp_path / "made")
    assert NAME in {finding.place for finding in found.findings}
    assert (found.requests, True) == (asyncio.run(usage(tmp_path / "made"))[0], found.requests > 300)


def test_the_check_reads_the_log_of_a_killed_server_as_the_next_one_does(tmp_path: Path) -> None:
    asyncio.run(killed(tmp_path / "made", folder := tmp_path / "state"))
    flip(folder / (CLIENTS + WAL), PAGE + 2000)
    found = check(folder)
    assert CLIENTS + WAL in {finding.place for finding in found.findings}
    assert found.uploads >= 11
    assert serve_twice(folder)[0] >= 11


# --- usage


async def used(folder: Path) -> None:
    meter = Meter(folder)
    meter.open()
    for number in range(600):
        meter.admit("ada")
        meter.ended("ada", f"function {number}", f"k{number}", "succeeded", 1, 1, 2, None)
    await meter.close()


async def usage(folder: Path) -> tuple[int, int]:
    """Return the numbers of known requests and of stories."""
    meter = Meter(folder)
    meter.open()
    found = meter.usage("ada")
    meter.admit("ada")
    assert meter.ended("ada", "f", "new", "succeeded", 1, 1, 2, None)
    meter.received("ada", "new")
    await meter.close()
    return sum(flow.requests for flow in found.flows), len(meter.set_aside.stories)


def test_a_usage_file_that_was_damaged(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path / "made"))
    size = (tmp_path / "made" / NAME).stat().st_size
    for at in (0, 18, 20, 105, *range(PAGE + 5, size, 2 * PAGE)):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "made", folder)
        data = bytearray((folder / NAME).read_bytes())
        data[at] ^= 0xFF
        (folder / NAME).write_bytes(data)
        requests, stories = asyncio.run(usage(folder))
        assert requests > 300, at
        assert requests == 600 or stories, at
        assert damage(folder / NAME) == ""
        shutil.rmtree(folder)


def test_a_damaged_number_of_usage_is_not_counted(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path / "made"))
    with closing(sqlite3.connect(tmp_path / "made" / NAME)) as connection:
        connection.execute("UPDATE flows SET device_ns = 1 << 40 WHERE function = 'function 3'")
        connection.execute("UPDATE folded SET segment = 1 << 40")
        connection.execute("UPDATE keys SET key = 'k' WHERE key = 'k7'")
        connection.commit()
    damaged = [kept.what for kept in check(tmp_path / "made").findings]
    assert sum("its checksum is wrong" in what for what in damaged) == 3
    assert asyncio.run(usage(tmp_path / "made")) == (599, 3)
    with closing(sqlite3.connect(tmp_path / "made" / NAME)) as connection:
        assert connection.execute("SELECT segment FROM folded").fetchone()[0] < 10


@pytest.mark.parametrize("damaged", [False, True])
def test_a_usage_file_of_an_earlier_version(tmp_path: Path, damaged: bool) -> None:
    """It has no checksums."""
    asyncio.run(used(tmp_path / "made"))
    path = tmp_path / "made" / NAME
    with closing(sqlite3.connect(path)) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN sum")
        connection.commit()
    assert [flow.requests for flow in read_usage(tmp_path / "made").flows] == [1] * 600
    if damaged:
        flip(path, 2)
    requests, stories = asyncio.run(usage(tmp_path / "made"))
    assert (requests, stories > 0) == (600, damaged)
    assert asyncio.run(usage(tmp_path / "made")) == (601, 0)


@pytest.mark.parametrize("left", [0, 1, 50, PAGE, PAGE + 7])
def test_a_usage_file_that_was_cut(tmp_path: Path, left: int) -> None:
    asyncio.run(used(tmp_path / "made"))
    data = (tmp_path / "made" / NAME).read_bytes()
    assert len(data) > left
    (tmp_path / "made" / NAME).write_bytes(data[:left])
    requests, stories = asyncio.run(usage(tmp_path / "made"))
    assert requests == 600 or stories
    assert damage(tmp_path / "made" / NAME) == ""


def test_a_usage_file_that_is_missing(tmp_path: Path) -> None:
    """The damage is reported once, and later usage counts."""
    asyncio.run(used(tmp_path / "made"))
    (tmp_path / "made" / NAME).unlink()
    assert asyncio.run(usage(tmp_path / "made"))[1] == 1
    assert asyncio.run(usage(tmp_path / "made")) == (1, 0)
    assert damage(tmp_path / "made" / NAME) == ""


def test_stray_files_next_to_the_journal_change_no_usage(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path / "made"))
    (tmp_path / "made" / f"{SEGMENT}bak").write_text("an operator's copy")
    (tmp_path / "made" / f"{SEGMENT}7").mkdir()
    assert asyncio.run(usage(tmp_path / "made"))[0] == 600


def test_a_flipped_bit_in_the_log_of_the_usage_of_a_killed_server(tmp_path: Path) -> None:
    asyncio.run(killed_usage(tmp_path / "made", folder := tmp_path / "state"))
    flip(folder / (NAME + WAL), 200)
    requests, stories = asyncio.run(usage(folder))
    assert stories
    assert requests == 40


async def killed_usage(folder: Path, to: Path) -> None:
    """Charge 40 requests and write them into the file, and copy it as a killed server leaves it."""
    file = UsageFile(folder, Reserve(folder))
    file.open()
    for number in range(1, 41):
        flow = FlowUsage("ada", "f", number, {"succeeded": number}, 0, 0, 0, 0, 0)
        file.apply(Changes(number, [flow]))
    shutil.copytree(folder, to)
    file.close()


# --- a server


@pytest.mark.processes
def test_a_server_with_its_whole_state_damaged_serves(serve: Serve) -> None:
    first = serve()
    with client(first, "alice") as alice:
        alice.register(scaled(), name="f")
    first.terminate()  # one that is killed leaves all of it a second time, in SQLite's journals
    assert first.wait() == 0
    state = first.folder / "state"
    for name in (CLIENTS, NAME):
        (state / name).write_bytes(b"?" * 5000)
    (state / "contents" / "stray").write_text("?")
    (first.keys / "clients" / "bob.toml").write_text("name = 'bob'\npubl")
    second = serve({"administrators": ["boss"]})
    with client(second, "alice") as alice, client(second, "boss") as boss:
        alice.register(scaled(), name="f")
        assert alice.call("f", {"x": np.ones(WIDTH, np.float32)}).result()[0] == 2
        stories = boss.status()["set_aside"]
    assert [name for name in (CLIENTS, NAME, "stray") if not any(name in story for story in stories)] == []
    said = second.errors.read_text()
    assert [name for name in ("bob.toml", CLIENTS, NAME) if name not in said] == []


def client(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


@pytest.mark.processes
def test_a_server_whose_state_is_renamed_is_not_ready(serve: Serve) -> None:
    server = serve()
    state, elsewhere = server.folder / "state", server.folder / "elsewhere"
    with client(server, "alice") as alice:
        assert alice.health()["ready"]
        state.rename(elsewhere)
        health = alice.health()
        assert not health["ready"]
        assert "the files of its state were removed or renamed" in health["trouble"]
        with pytest.raises(StateUnavailable):
            alice.put("x", np.ones(WIDTH, np.float32))
        assert not state.exists()
        elsewhere.rename(state)
        assert alice.health()["ready"]
        alice.put("x", np.ones(WIDTH, np.float32))
    server.terminate()
    assert server.wait() == 0
