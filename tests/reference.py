"""docs/api.md, made from the public docstrings: `python -m tests.reference --write`."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kaas
from kaas import errors

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

SECTIONS = {
    "A pool": (
        "init",
        "shutdown",
        "status",
        "stats",
        "pardon",
        "Config",
        "Device",
        "ClientSettings",
        "FunctionProfile",
        "ProfilePoint",
        "Scale",
        "Share",
        "set_share",
    ),
    "A kTask": (
        "KTask",
        "Kernel",
        "Library",
        "Buffer",
        "In",
        "Out",
        "InOut",
        "Pointers",
        "Struct",
        "Scalar",
        "Literal",
        "Null",
    ),
    "Calling": ("register", "Function", "call", "Future", "invoke", "run_local", "View", "Resident", "etask", "ETask"),
    "Constants in eTasks": ("device_constants", "DeviceArray"),
    "Models": ("CompiledModel", "load", "Variant"),
    "What devices keep": ("put", "prefetch", "pin", "unpin", "flush", "cache_root"),
    "Servers": ("Client", "AsyncClient"),
}
"""Public names by what they are for; literals and errors have tables of their own."""

LITERALS = tuple(name for name in kaas.__all__ if re.fullmatch(r"bf16|boolean|[cfiu]\d+", name))

HEAD = """# API

Every public name of `kaas`, from its docstring: `help(kaas.call)` shows the same. `make tables` writes this page again.
[ktasks.md](ktasks.md) and [programs.md](programs.md) say how the names go together.
"""


def listed() -> set[str]:
    """The names that the page has."""
    return {*(name for names in SECTIONS.values() for name in names), *LITERALS, "KaasError", "errors"}


def page() -> str:
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(entry(name, getattr(kaas, name)) for name in names)]
    parts += ["## Literals\n", table("call", ((f"`kaas.{n}(value)`", first(getattr(kaas, n))) for n in LITERALS))]
    parts += ["## Errors\n", "All are in `kaas.errors`, and are a `kaas.KaasError` with fields.\n"]
    parts += [table("error", ((f"`{error.__name__}`", first(error)) for error in known()))]
    return "\n".join(parts)


def known() -> list[type]:
    """The errors, in the order of their file."""
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.KaasError)]


def entry(name: str, value: Any) -> str:
    """A name with its signature, its docstring and, of a class, its public methods."""
    told = [f"### {name}\n", f"```text\nkaas.{name}{signature(value)}\n```\n", block(value)]
    if inspect.isclass(value):
        told += [f"- **`{method}{signature(member)}`** {first(member)}" for method, member in methods(value)]
        told += [""] * (len(told) > 3)
    return "\n".join(told)


def methods(value: type) -> Iterator[tuple[str, Any]]:
    """Return the methods and properties that a class of KaaS has of its own, with a docstring."""
    for name, member in inspect.getmembers(value):
        held = inspect.getattr_static(value, name)
        function = held.fget if isinstance(held, property) else inspect.unwrap(member)
        ours = (getattr(function, "__module__", None) or "").startswith("kaas")
        if ours and not name.startswith("_") and inspect.getdoc(function) and not inspect.isclass(member):
            yield name, held if isinstance(held, property) else member


def signature(value: Any) -> str:
    """As it is called, without what stands for itself; nothing for what is not called."""
    if not callable(value):
        return ""
    text = str(inspect.signature(value))
    text = re.sub(r"<(?:function|class) ([^>]*?)(?: at 0x[0-9a-f]+)?>", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are strings


def block(value: Any) -> str:
    """A docstring; its list of arguments stays as it is indented."""
    text = inspect.getdoc(value) if callable(value) else ""
    return f"```text\n{textwrap.dedent(text).strip()}\n```\n" if text else f"`{value!r}`\n"


def first(value: Any) -> str:
    """The first sentence of a docstring, in one line."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


def table(head: str, rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join([f"| {head} | |", "| --- | --- |", *(f"| {name} | {told} |" for name, told in rows), ""])


def main() -> int:
    """Tells whether the page is up to date; with --write, makes it so."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() != page():
        print(f"{PAGE} is out of date: python -m tests.reference --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
