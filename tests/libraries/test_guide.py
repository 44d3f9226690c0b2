"""The programs of docs/blas.md and of the library's README run, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlass_blas import gemms, records
from tests.lanes import spread

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _own_records(tmp_path: Path) -> Iterator[None]:
    records.use(tmp_path / "blas.sqlite3")
    yield
    records.use(None)
    gemms.forget()


@pytest.mark.parametrize("guide", spread(["libraries/cutlass_blas/README.md", "docs/blas.md"], 1))
def test_the_programs_of_the_guide(guide: str, capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / guide).read_text(), re.DOTALL)
    assert programs
    names: dict[str, Any] = {}
    for program in programs:  # each may use the names of earlier ones
        exec(compile(program, guide, "exec"), names)
    assert capsys.readouterr().out
