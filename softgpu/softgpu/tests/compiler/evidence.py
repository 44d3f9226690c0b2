"""The tests that show each family of PTX instructions: found in the tests' own PTX, not written down."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from softgpu.instructions import family_of

HERE = Path(__file__).parent

# A statement begins after one of these, perhaps with a guard. Parts that a test fills in read as {}.
_OPCODE = re.compile(r"(?:^|[;{}:\n])\s*(?:@!?[%\w{}]+\s+)?([a-z]\w*)((?:\.[\w:{}]+)*)(?=[\s;])")
_COMMENT = re.compile(r"//[^\n]*")
_NO_RESULTS = ("test_refusals.py", "test_ptx.py", "test_caches.py", "test_jit.py", "test_stacks.py")
"""Test files that look at no results of what they compile."""


@cache
def tests_by_family() -> dict[str, str]:
    """For each family that a test runs, the first such test: path from this folder, and function where there is one."""
    found: dict[str, str] = {}
    sources = sorted(HERE.rglob("test_*.py"), key=_nearness)
    for path in sources:
        if path.name in _NO_RESULTS:
            continue
        for text, function in _texts(path):
            for family in families_in(text):
                found.setdefault(family, _name(path) + (f"::{function}" if function else ""))
    for path in sorted(HERE.rglob("*.ptx"), key=_nearness):
        test = _test_of(path)
        for family in families_in(_COMMENT.sub("", path.read_text())) if test else ():
            found.setdefault(family, test)
    return found


def _nearness(path: Path) -> tuple[int, bool, Path]:
    """Tests of single instructions come first, those in folders last."""
    return len(path.parts), path.name != "test_instructions.py", path


def families_in(text: str) -> Iterator[str]:
    """The instruction families of PTX text, as the table of instructions names them."""
    if ";" not in text:
        return
    for base, rest in _OPCODE.findall(text):
        yield family_of(base, rest.split(".")[1:])


def _name(path: Path) -> str:
    return path.relative_to(HERE).as_posix()


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Every string of a file, and the test in which it stands; "" outside."""
    yield from _strings(ast.parse(path.read_text()), "")


def _strings(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
    match node:
        case ast.FunctionDef(name=name) if name.startswith("test_"):
            function = name
        case ast.JoinedStr(values=values):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values]
            yield "".join(parts), function
            return
        case ast.Constant(value=str(text)):
            yield text, function
    for child in ast.iter_child_nodes(node):
        yield from _strings(child, function)


def _test_of(path: Path) -> str:
    """The test file that names a PTX file, or the only one of the nearest folder that has any."""
    for folder in path.parents:
        tests = [test for test in sorted(folder.glob("test_*.py")) if test.name not in _NO_RESULTS]
        for test in tests:
            if re.search(rf'["/]{re.escape(path.stem)}(\.ptx)?"', test.read_text()):
                return _name(test)
        if len(tests) == 1:
            return _name(tests[0])
        if folder == HERE:
            return ""
    return ""
