"""A command writes regular files only: it follows links, and replaces no device, fifo or link."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import InvalidRequest
from kaas.models import model_file
from kaas.output_files import output_file, write_whole
from tests.limits import limited

COMMANDS = (
    ("papers", "kaas", "--report"),
    ("papers", "lalb", "--plot"),
    ("papers", "mqfq", "--plot"),
    ("papers", "hybrid", "--plot"),
    ("papers", "fast", "--plot"),
    ("simulate", "GIVEN", "--plot"),
    ("replay", "GIVEN", "--scenario"),
    ("bench", "file", "GIVEN", "--html"),
    ("compile", "GIVEN", "--output"),
    ("code", "sign", "GIVEN", "--key", "GIVEN", "--to"),
    ("trace", "--out"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_refuses_a_fifo_before_it_begins(command: tuple[str, ...], tmp_path: Path) -> None:
    given, fifo, link = tmp_path / "given", tmp_path / "fifo", tmp_path / "link"
    given.write_text("{}")
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for name in (fifo, link):
        arguments = [str(given) if each == "GIVEN" else each for each in command]
        refused = CliRunner().invoke(app, [*arguments, str(name)])
        assert isinstance(refused.exception, InvalidRequest), refused.output
        assert refused.exception.message == f"cannot write {name}: it is not a regular file"
    assert fifo.is_fifo()
    assert link.is_symlink()
    assert {each.name for each in tmp_path.iterdir()} == {"given", "fifo", "link"}


def test_the_file_that_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real, link, new = tmp_path / "folder" / "page", tmp_path / "link", tmp_path / "new"
    real.write_text("old")
    link.symlink_to("folder/page")
    new.symlink_to("folder/more")
    write_whole(link, b"text")
    write_whole(new, b"more")
    assert real.read_text() == "text"
    assert (tmp_path / "folder" / "more").read_text() == "more"
    assert link.is_symlink()
    assert new.is_symlink()
    assert {each.name for each in (tmp_path / "folder").iterdir()} == {"page", "more"}


@pytest.mark.parametrize("special", ["fifo", "folder", "loop"])
def test_nothing_but_a_regular_file_is_replaced(special: str, tmp_path: Path) -> None:
    name = tmp_path / special
    match special:
        case "fifo":
            os.mkfifo(name)
        case "folder":
            name.mkdir()
        case _:
            name.symlink_to(name)
    before = name.lstat()
    with pytest.raises(InvalidRequest, match="not a regular file"):
        write_whole(name, b"text")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        model_file.write(name, None)  # type: ignore[arg-type]
    assert (name.lstat().st_ino, name.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [each.name for each in tmp_path.iterdir()] == [special]


def test_the_output_of_a_pipe_is_no_file(tmp_path: Path) -> None:
    """As /dev/stdout of a command in a pipe is: the link leads to a name that no folder has."""
    reader, writer = os.pipe()
    link = tmp_path / "link"
    link.symlink_to(f"/proc/self/fd/{writer}")
    try:
        with pytest.raises(InvalidRequest, match="not a regular file"):
            output_file(link)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "page"
    file.write_text("old")
    with limited(resource.RLIMIT_FSIZE, 10), pytest.raises(OSError, match="page") as error:
        write_whole(file, b"x" * 100)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(file))
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
