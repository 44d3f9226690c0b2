"""Names that stand twice in an object of a JSON text: one of their values would be lost."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


def repeated_name(text: bytes | str) -> str | None:
    """Return the path of a name of a JSON text that its object has twice, or None."""
    found = json.loads(text, object_pairs_hook=_name_twice)
    return found.path if isinstance(found, _Twice) else None


class _Twice(NamedTuple):
    """The place of a name that stands twice in an object: one of its values would be lost."""

    path: str


def _name_twice(pairs: list[tuple[str, Any]]) -> _Twice | None:
    """Return the place in an object of a JSON text, or in the objects in it, where a name stands twice, if any."""
    names = set()
    for name, given in pairs:
        if name in names:
            return _Twice(name)
        names.add(name)
        if (found := _in_value(given)) is not None:
            return _Twice(f"{name}{found.path if found.path.startswith('[') else '.' + found.path}")
    return None


def _in_value(value: Any) -> _Twice | None:
    """Return the place in a value whose objects are already what `_name_twice` returns for them."""
    if isinstance(value, list):
        for place, given in enumerate(value):
            if given is not None and (found := _in_value(given)) is not None:
                return _Twice(f"[{place}]{found.path if found.path.startswith('[') else '.' + found.path}")
    return value if isinstance(value, _Twice) else None
