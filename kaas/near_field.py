"""The known field that an unknown field of a file probably means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as inspect

PLACE = re.compile(r" - at `\$\.?(.*)`$")
UNKNOWN = re.compile(r"unknown field `(.*?)`")
"""The place and the name of a field in the text of msgspec's errors."""
_PART = re.compile(r"\[.*?\]")


def near_field(settings: type, error: str) -> str:
    """Return a known field: with a similar name at the same place, or with this name elsewhere; "" if there is none.

    Args:
        settings: the class of the file.
        error: msgspec's text. If it is not about an unknown field, there is no such field.
    """
    place, found = PLACE.search(error), UNKNOWN.search(error)
    if found is None:
        return ""
    unknown, within = found.group(1), _PART.sub("", place.group(1)) if place is not None else ""
    fields = list(_fields(inspect.type_info(settings), ""))
    here = [name for where, name in fields if where == within]
    near = difflib.get_close_matches(unknown, here, 1)
    if near:
        return near[0]
    return next((f"{where}.{name}" if where else name for where, name in fields if name == unknown), "")


def _fields(kind: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each field, also within lists and maps."""
    match kind:
        case inspect.StructType(fields=fields):
            for each in fields:
                yield where, each.name
                yield from _fields(each.type, f"{where}.{each.name}" if where else each.name)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _fields(one, where)
        case inspect.VarTupleType(item_type=item):
            yield from _fields(item, where)
        case inspect.DictType(value_type=value):
            yield from _fields(value, where)
