"""The errors of importers that cannot take a kernel."""

from __future__ import annotations

from typing import Any

from kaas.errors import CompileFailed, MissingPackage


def refused(compiler: str, source: str, why: str, log: str = "", line: int | None = None) -> CompileFailed:
    """Return the error of a source that its compiler refuses, or that would not run as a kTask's kernel."""
    fields: dict[str, Any] = {} if line is None else {"line": line}
    return CompileFailed(f"{compiler} refuses {source}: {why}", compiler=compiler, source=source, log=log, **fields)


def missing(package: str, install: str) -> MissingPackage:
    """Return the error of a package that is not installed; `install` is its name for pip."""
    return MissingPackage(f"{package} is not here: pip install {install}", package=package, install=install)


def title(kernel: Any) -> str:
    """Return the name of a Python function, also of a decorated one."""
    return str(getattr(kernel, "__name__", type(kernel).__name__))
