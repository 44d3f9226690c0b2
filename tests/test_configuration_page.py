"""docs/configuration.md is what the code says: `python -m tests.test_configuration_page` writes it again."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec

import kaas
from kaas.server.config.pool_settings import PoolSettings
from kaas.server.config.serve_config import (
    CodeSettings,
    ETaskSettings,
    LimitSettings,
    ListenSettings,
    Settings,
)
from kaas.server.server_log import LogSettings
from kaas.server.usage.quotas import Quotas

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration

All settings of a pool and of a server, with their defaults. `kaas.init` takes the fields of `Config`; a server's file
([serve.md](serve.md)) has the fields of `Settings`, and under `pool` those of `Config` except `store`, with devices and
clients as objects. `python -m tests.test_configuration_page` writes this page from the code.
"""
CLASSES: dict[type, str] = {
    kaas.Config: "A pool: `kaas.Config`, `kaas.init`, `pool`",
    kaas.Device: "A device: `kaas.Device`, `pool.devices`",
    kaas.Scale: "Devices that come and go: `kaas.Scale`",
    kaas.ClientSettings: "A client of a pool: `kaas.ClientSettings`, `pool.clients`",
    Settings: "A server: the file of `kaas serve`",
    ListenSettings: "`listen`",
    LimitSettings: "`limits`",
    Quotas: "`limits.quotas`, and `[quotas]` of a client's file",
    CodeSettings: "`code`",
    ETaskSettings: "`etasks`",
    LogSettings: "`log`",
}


def page() -> str:
    return "\n".join([INTRODUCTION, *(_section(kind, title) for kind, title in CLASSES.items())])


def _section(kind: type, title: str) -> str:
    said = _descriptions(kind)
    rows = [f"| `{name}` | {default} | {said.get(name, '')} |" for name, default in _defaults(kind).items()]
    return "\n".join([f"## {title}", "", "| field | default | meaning |", "| --- | --- | --- |", *rows, ""])


def _defaults(kind: type) -> dict[str, str]:
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        found: dict[str, Any] = {
            each.name: each.default_factory() if each.default_factory is not missing else each.default
            for each in dataclasses.fields(kind)
        }
        return {name: _shown(value, value is missing) for name, value in found.items()}
    fields = msgspec.structs.fields(kind)
    return {
        each.name: _shown(each.default_factory() if each.default is msgspec.NODEFAULT and not each.required
                          and callable(each.default_factory) else each.default, each.required)
        for each in fields
    }  # fmt: skip


def _shown(value: Any, required: bool) -> str:
    if required:
        return "required"
    if isinstance(value, msgspec.Struct):
        changed = {name: each for name, each in msgspec.structs.asdict(value).items() if each is not None}
        return f"`{changed}`" if type(value) is Quotas else "see below"
    return f"`{value!r}`"


def _descriptions(kind: type) -> dict[str, str]:
    """Of its docstring: "name: words", several to a line, and "one, two: words" of both. Of `Args` or `Fields`, or of a
    docstring without a section."""
    text = inspect.getdoc(kind) or ""
    section = re.split(r"^(?:Args|Fields):$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    words = " ".join(section.split("\n\n")[0].split())
    names = {*_defaults(kind)}
    found: dict[str, str] = {}
    name = f"(?:{'|'.join(names)})"
    parts = re.split(rf"(?:^|(?<=[.;] ))({name}(?:, {name})*): ", words)
    for keys, said in zip(parts[1::2], parts[2::2], strict=True):
        for name in names & {*keys.split(", ")}:
            found[name] = said.strip().replace("|", "\\|")
    return found


def test_the_page_is_made_of_the_code() -> None:
    assert PAGE.read_text() == page(), "python -m tests.test_configuration_page writes it again"


def test_every_field_of_a_pool_and_a_server_is_described() -> None:
    for kind in (
        kaas.Config,
        kaas.Device,
        kaas.ClientSettings,
        LimitSettings,
        Quotas,
        CodeSettings,
        ETaskSettings,
        LogSettings,
    ):
        assert _defaults(kind).keys() == _descriptions(kind).keys(), kind


def test_a_servers_own_default_is_described() -> None:
    pools, servers, said = _defaults(kaas.Config), _defaults(PoolSettings), _descriptions(kaas.Config)
    other = {name for name, default in servers.items() if default != pools[name]}
    assert other == {name for name, words in said.items() if "server's `pool` has" in words}


if __name__ == "__main__":
    PAGE.write_text(page())
