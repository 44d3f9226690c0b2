"""Reading of a configuration's YAML, and the places in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from kaas.errors import InvalidConfig

ANY_KEY = "[...]"
"""Stands for the key of a map in msgspec's places."""
_PART = re.compile(r"\[.*?\]|[^.\[]+")


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


def named_place(document: Any, place: str, fails: Callable[[Any], bool]) -> str:
    """Return the place of an error in a document, with the keys of maps in it.

    Args:
        place: in msgspec's words, without its `$.`.
        fails: returns True if another document has the same error: one with a single key of such a map has it.
    """
    keys: list[Any] = []
    shown, found = "", document
    for part in _PART.findall(place):
        key: Any = part
        if part == ANY_KEY and isinstance(found, Mapping):
            key = next((each for each in found if fails(_only(document, [*keys, each]))), None)
        elif part.startswith("["):
            key = int(part[1:-1])
        try:
            found = found[key]
        except (LookupError, TypeError):
            return place
        keys.append(key)
        shown += part if isinstance(key, int) else f".{key}"
    return shown.removeprefix(".")


def _only(document: Any, keys: list[Any]) -> Any:
    """Return a document in which the map at the end of a path has the last key only."""
    key, *below = keys
    if not below:
        return {key: document[key]}
    copy = dict(document) if isinstance(document, Mapping) else list(document)
    copy[key] = _only(document[key], below)
    return copy


def line_of(text: bytes, field: str) -> int:
    """Return the number of the line in which a field begins, or else the innermost object around it; 0 for none.

    field: its place, as in `InvalidConfig`: pool.devices[0].sms.
    """
    node, line, left = yaml.compose(text, yaml.CSafeLoader), 0, field
    while left:
        if isinstance(node, yaml.MappingNode):
            within = {str(key.value): (key, value) for key, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            within = {f"[{index}]": (value, value) for index, value in enumerate(node.value)}
        else:
            break
        fitting = [name for name in within if left.startswith(name) and left[len(name) :][:1] in ("", ".", "[")]
        if not fitting:
            break
        name = max(fitting, key=len)  # it may have dots
        begin, node = within[name]
        line, left = begin.start_mark.line + 1, left[len(name) :].removeprefix(".")
    return line
