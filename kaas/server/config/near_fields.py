"""The field that is meant by one that a configuration does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as inspect

_PART = re.compile(r"\[.*?\]")


def near_field(settings: type, place: str, unknown: str) -> str:
    """A field that is there: of a like name at the same place, or of this name elsewhere; "" if there is none.

    Args:
        place: as msgspec names it, without `$.`: "pool.devices[0]".
    """
    within = _PART.sub("", place)
    fields = list(_fields(inspect.type_info(settings), ""))
    here = [name for where, name in fields if where == within]
    near = difflib.get_close_matches(unknown, here, 1)
    if near:
        return near[0]
    return next((f"{where}.{name}" if where else name for where, name in fields if name == unknown), "")


def _fields(kind: Any, where: str) -> Iterator[tuple[str, str]]:
    """Where each field is, and its name; of lists and maps those of what is in them."""
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
