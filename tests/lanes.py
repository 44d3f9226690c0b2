"""Which tests run: `--lane quick` for `make quick`, `--lane test` for `make test`; `all`, the default, leaves none out.

A test is in the quick lane unless it has one of the markers of OUTSIDE["quick"] or stands in a file that imports what
`make quick` does not install. So a new test of plain Python is quick without a mark, and a test that starts a program
fails there until it is marked. Of a test with many cases the quick lane runs a sample, and all where `-k`, a file or a
test is given.
"""

from __future__ import annotations

import ast
import gc
import random
import re
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

OUTSIDE = {"quick": {"full", "processes", "ray", "slow"}, "test": {"full"}, "all": set[str]()}
"""lane -> markers of the tests that the lane leaves to the next one."""
NOT_INSTALLED = {"cupy", "cutlass_blas", "numba", "onnx", "ray", "torch", "triton", "tvm", "tvm_backend"}
"""Packages that a file of the quick lane, and a file of ours that it imports, may not import at its top. A folder whose
conftest.py imports one is left out whole."""
QUICK_CASES = 5
"""The most cases of one test that the quick lane runs where no test is asked for by name."""
ROOT = Path(__file__).parent.parent
SOURCES = (ROOT, ROOT / "softgpu", ROOT / "compilers" / "tvm_backend", ROOT / "libraries" / "cutlass_blas")
"""Folders that our packages stand in."""
STARTS = {"os.posix_spawn", "subprocess.Popen"}
"""Audit events of a program that starts. A fork of the test's own process is cheap, and allowed."""
CODE = re.compile(r"^(?:@|def |async def |class )", re.MULTILINE)
"""The first line after the top of a file."""
LOOK_UPS = {"/sbin/ldconfig", "fc-list"}
"""Programs that packages start while a first test imports them: cuda.pathfinder to find libraries, and matplotlib to
find fonts where it has no cache of them yet. They are allowed."""


def spread(cases: Iterable[Any], count: int) -> list[Any]:
    """Return the cases of a parametrized test, of which all but `count`, evenly spread, are marked `full`.

    A tuple is the arguments of one case.
    """
    listed = list(cases)
    step = max(1.0, len(listed) / count)
    chosen = {int(step * i) for i in range(min(count, len(listed)))}
    return [case if i in chosen else _full(case) for i, case in enumerate(listed)]


def _full(case: Any) -> Any:
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.full)


class Head(NamedTuple):
    """The parts of a file that decide its lane. The file is read and not imported, since its imports may be missing.

    Fields:
        imports: dotted names, imported at its top; imports in functions, or for types, are left out.
        marks: the markers that a test file gives to all its tests.
    """

    imports: set[str]
    marks: set[str]


def _sample(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return QUICK_CASES cases of each test that has more, drawn by the test's name, and all of the others."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    return {
        item
        for test, listed in cases.items()
        for item in random.Random(test).sample(listed, min(QUICK_CASES, len(listed)))
    }


def _top(text: str) -> list[ast.stmt]:
    """Return the statements of a file before its first function or class, or more of them.

    To parse all of every file takes each process of pytest seconds.
    """
    code = CODE.search(text)
    if code is not None and "pytestmark" not in text[code.start() :]:
        with suppress(SyntaxError):  # of a program in a string, where that is cut
            return ast.parse(text[: code.start()]).body
    return ast.parse(text).body


@cache
def _head(path: Path) -> Head:
    imports, marks = set[str](), set[str]()
    for statement in _top(path.read_text()):
        match statement:
            case ast.Import(names=names):
                imports |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                imports |= {module, *(f"{module}.{name.name}" for name in names)}
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                marks |= {node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)}
    return Head(imports, marks)


@cache
def _file(name: str) -> Path | None:
    """Return the file of a module of ours, or None."""
    paths = (folder / name.replace(".", "/") for folder in SOURCES)
    files = (file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py"))
    return next((file for file in files if file.is_file()), None)


@cache
def _ours(path: Path) -> set[Path]:
    """Return the files of ours that a file imports at its top."""
    names = {".".join(parts[:length]) for parts in _parts(path) for length in range(1, len(parts) + 1)}
    return {file for name in names if (file := _file(name)) is not None}


def _parts(path: Path) -> list[list[str]]:
    return [name.split(".") for name in _head(path).imports]


@cache
def _roots(path: Path) -> set[str]:
    return {parts[0] for parts in _parts(path)}


def _packages(path: Path) -> set[str]:
    """Return the packages that a file imports at its top, and those that our files import that it imports so."""
    seen, left = {path}, [path]
    while left:
        new = _ours(left.pop()) - seen
        seen |= new
        left += new
    return set[str]().union(*map(_roots, seen))


def is_outside(path: Path, lane: str) -> bool:
    """Return whether nothing of a test file, or of a folder with its conftest.py, is in the lane."""
    read = path / "conftest.py" if path.is_dir() else path
    if not read.is_file() or read.suffix != ".py" or lane == "all":
        return False
    return bool(_head(read).marks & OUTSIDE[lane] or (lane == "quick" and _packages(read) & NOT_INSTALLED))


class Lane:
    """The plugin: leaves out what is outside of the lane, and in the quick one refuses to start programs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._test = ""
        if name == "quick":
            sys.addaudithook(self._audit)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave a file or a folder out, before it is imported."""
        return is_outside(collection_path, self.name) or None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave single tests out."""
        outside = OUTSIDE[self.name]
        chosen = {item for item in items if not outside & {mark.name for mark in item.iter_markers()}}
        asked = config.option.keyword or config.args_source is pytest.Config.ArgsSource.ARGS
        if self.name == "quick" and not asked:
            chosen = _sample(item for item in items if item in chosen)
        if left := [item for item in items if item not in chosen]:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item in chosen]

    def pytest_collection_finish(self) -> None:
        """Keep what thousands of collected tests hold out of collections of garbage, of which tests ask for many."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Know which test runs."""
        self._test = item.nodeid
        try:
            return (yield)
        finally:
            self._test = ""

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._test and event in STARTS and arguments[0] not in LOOK_UPS:
            message = f"{self._test} starts a program, {str(arguments)[:200]}: mark it pytest.mark.processes"
            raise RuntimeError(message)


def add_option(parser: pytest.Parser) -> None:
    """Add `--lane`."""
    parser.addoption("--lane", choices=sorted(OUTSIDE), default="all", help="which tests run: see tests/lanes.py")
