"""The driver calls that work and those that are refused, with their tests: read from the driver and the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
DRIVER = HERE.parents[1] / "driver"
WORKS = "works"
IN_BINDINGS = {"cuGraphInstantiate": "cuGraphInstantiateWithFlags"}
"""Functions of cuda.bindings whose driver call has another name."""


def works() -> list[str]:
    """The calls of symbols.c, by name."""
    return sorted(set(re.findall(r"\bX\((cu\w+), \d+, \w+\)", (DRIVER / "symbols.c").read_text())))


def refused() -> dict[str, str]:
    """The calls of refused.h, with the reason."""
    text = (DRIVER / "refused.h").read_text()
    groups = dict(re.findall(r"#define (REFUSED_\w+)\(X, why\) \\\n((?:.*\\\n)*.*\n)", text))
    reasons = dict(re.findall(r"(REFUSED_\w+)\(X, \"(.*)\"\)", text))
    return {name: reasons[group] for group, body in groups.items() for name in re.findall(r"X\((cu\w+),", body)}


def shown() -> dict[str, str]:
    """For each call that a test makes, the first such test: `file::name`."""
    found: dict[str, str] = {}
    for path in sorted(HERE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        helpers = {
            node.name: _calls(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test_")
        }
        for node in tree.body:
            if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
                continue
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            names |= {
                argument.annotation.id for argument in node.args.args if isinstance(argument.annotation, ast.Name)
            }
            made = _calls(node).union(*(helpers[name] for name in names & helpers.keys()))
            for call in made:
                found.setdefault(call, f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _calls(node: ast.AST) -> set[str]:
    """Names of the driver's functions in it: attributes of the driver module, and text that names one alone."""
    attributes = {item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)}
    texts = {item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    names = {re.sub(r"_v\d$", "", name) for name in attributes | texts if re.fullmatch(r"cu[A-Z]\w+", name)}
    return names | {IN_BINDINGS[name] for name in names & IN_BINDINGS.keys()}


def rows() -> list[tuple[str, str, str]]:
    """(call, "works" or "refused: why", the test that shows it), by name. Any other call is not found by its name."""
    tests = shown()
    states = {**dict.fromkeys(works(), WORKS), **{name: f"refused: {why}" for name, why in refused().items()}}
    saying = "softgpu/softgpu/tests/driver/cases/case_refused.py::test_every_refused_call_reports_its_name"
    return [(name, how, tests.get(name, "" if how == WORKS else saying)) for name, how in sorted(states.items())]
