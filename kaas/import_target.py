"""Python functions and classes that a configuration or a command line names, as "module:name"."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kaas.errors import InvalidConfig


def check_target(field: str, target: str) -> None:
    """Check that a target is "module:name".

    Raises:
        InvalidConfig: it is not.
    """
    module, _, function = target.partition(":")
    if not (module and function):
        raise InvalidConfig(f"{field} is module:function, not {target!r}", field=field)


@contextmanager
def modules_here() -> Iterator[None]:
    """Have the search of modules include the current folder, as `python -m` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def find_target(field: str, target: str) -> Any:
    """Return the function or class that a target names, in this process.

    Raises:
        InvalidConfig: there is none. All errors of its module's import.
    """
    module, _, name = target.partition(":")
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidConfig(f"{field} is {target!r}: {error}", field=field) from error
    function = getattr(loaded, name, None)
    if not callable(function):
        raise InvalidConfig(f"{field} is {target!r}: module {module!r} has no function or class {name!r}", field=field)
    return function
