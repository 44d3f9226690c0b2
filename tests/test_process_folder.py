"""A folder of a process goes with it, whatever lies in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kaas.process_folder import ProcessFolder

DEEP = 1500


@pytest.mark.processes
def test_a_folder_goes_with_what_lies_in_it_however_deep(tmp_path: Path) -> None:
    folder = ProcessFolder("one-", str(tmp_path))
    here = os.open(folder.path, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    try:
        folder.remove()
        assert not os.path.exists(folder.path)
        folder.remove()
    finally:  # pytest could not remove it
        subprocess.run(["rm", "-rf", "--", folder.path], check=True)


def test_the_next_folder_takes_those_away_that_ended_processes_have_left(tmp_path: Path) -> None:
    (tmp_path / "one-left" / "files").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    first = ProcessFolder("one-", str(tmp_path))
    second = ProcessFolder("one-", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"other", Path(first.path).name, Path(second.path).name}
    for each in (first, second):
        each.remove()
