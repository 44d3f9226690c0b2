"""Reading of a configuration's YAML."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]

from kaas.errors import InvalidConfig


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
