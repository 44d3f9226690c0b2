"""The tables of softgpu/docs/softgpu.md, made from the code: `python -m softgpu.tests.compiler.tables --write`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from softgpu import instructions, refused
from softgpu.tests.compiler.evidence import tests_by_family

PAGE = Path(__file__).parents[3] / "docs" / "softgpu.md"
REFUSALS = "test_refusals.py::test_instructions_without_code"
DRIVER_TABLE = "softgpu.tests.driver.table"


def instruction_rows() -> list[tuple[str, str, str, str]]:
    """(family, types or "refused", what it does or belongs to, test)."""
    tests = tests_by_family()
    rows = [(name, types, summary, tests.get(name, "")) for name, types, summary in instructions.supported()]
    rows += [(name, "refused", why, REFUSALS) for name, why in refused.REFUSED.items()]
    return sorted(rows)


def driver_rows() -> list[tuple[str, str, str]]:
    """(call, state, test)."""
    return list(importlib.import_module(DRIVER_TABLE).rows()) if importlib.util.find_spec(DRIVER_TABLE) else []


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str) -> str:
    """The page with its tables as they are to be."""
    cells = [(f"`{name}`", types, what, f"`{test}`") for name, types, what, test in instruction_rows()]
    text = _between(
        text,
        "instructions",
        _table(("instruction", "types", "does", "shown by, in softgpu/softgpu/tests/compiler"), cells),
    )
    calls = [(f"`{call}`", state, f"`{test}`" if test else "") for call, state, test in driver_rows()]
    return _between(text, "driver calls", _table(("call", "state", "shown by"), calls)) if calls else text


def _between(text: str, name: str, table: str) -> str:
    before, found, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not found or not end:
        raise ValueError(f"no <!-- {name} --> ... <!-- end --> in the page")
    return f"{before}{found}{table}\n{end}{after}"


def main() -> int:
    """Tells whether the page is up to date; with --write, makes it so."""
    now = PAGE.read_text()
    wanted = page(now)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if now != wanted:
        print(f"{PAGE} is out of date: python -m softgpu.tests.compiler.tables --write")
    return int(now != wanted)


if __name__ == "__main__":
    sys.exit(main())
