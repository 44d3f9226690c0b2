"""The field that is meant by one that a configuration does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as inspect
import yaml  # type: ignore[import-untyped]

from kaas.errors import InvalidConfig

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


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # it has no types
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    message = f"line {key.start_mark.line + 1}: {key.value!r} stands there twice"
                    raise InvalidConfig(message, field=key.value)
                seen.add((key.tag, key.value))
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def load(text: bytes) -> Any:
    """
    Raises:
        InvalidConfig: a key stands twice, or it is no YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InvalidConfig(f"it is no YAML: {error}", field="") from error
