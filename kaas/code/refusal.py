"""What makers say of kernels that they cannot take."""

from __future__ import annotations

from typing import Any

from kaas.errors import CompileFailed, MissingPackage


def refused(compiler: str, source: str, why: str, log: str = "", line: int | None = None) -> CompileFailed:
    """The error of a source that its compiler does not take, or that would not run as a kTask's kernel."""
    fields: dict[str, Any] = {} if line is None else {"line": line}
    return CompileFailed(f"{compiler} refuses {source}: {why}", compiler=compiler, source=source, log=log, **fields)


def missing(package: str, install: str) -> MissingPackage:
    return MissingPackage(f"{package} is not here: pip install {install}", package=package, install=install)


def title(kernel: Any) -> str:
    """What a Python function, or what a decorator made of one, is called."""
    return str(getattr(kernel, "__name__", type(kernel).__name__))
