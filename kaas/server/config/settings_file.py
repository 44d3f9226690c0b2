"""Reading of a configuration's YAML, and the field that an unknown field probably means."""

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
    """Return a known field: with a similar name at the same place, or with this name elsewhere; "" if there is none.

    Args:
        settings: the class of the configuration. unknown: the field's name.
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
    """Return the values of a YAML text.

    Raises:
        InvalidConfig: a key stands twice, or the text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InvalidConfig(f"it is not YAML: {error}", field="") from error
