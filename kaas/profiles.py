"""Files of profiles: the times and memory of functions, by which a policy knows them before it has run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from kaas.config import Config, FunctionProfile
from kaas.errors import InvalidConfig

FIELDS = {each.name: each.default is MISSING for each in fields(FunctionProfile)}
"""The fields of a profile -> True if each profile must have it."""


def with_profiles(config: Config) -> Config:
    """Return a configuration with the profiles of its file in the place of the file's name, if it names one.

    Raises:
        InvalidConfig: the file cannot be read, or is no list of profiles. The message has the file and the place in it.
    """
    path = config.profiles
    return replace(config, profiles=_read(path)) if isinstance(path, str) else config


def _read(path: str) -> tuple[FunctionProfile, ...]:
    try:
        entries = msgspec.json.decode(Path(path).read_bytes(), type=list[dict[str, Any]])
        profiles = tuple(_profile(number, entry) for number, entry in enumerate(entries))
        Config(profiles=profiles)  # refuses an empty list, and functions that are in it twice
    except OSError as error:
        raise InvalidConfig(f"profiles: {path} cannot be read: {error}", field="profiles") from error
    except msgspec.DecodeError as error:
        raise InvalidConfig(f"profiles: {path} is no list of profiles: {error}", field="profiles") from error
    except InvalidConfig as error:
        raise InvalidConfig(f"profiles: {path}: {error.message}", field=error.field) from error
    return profiles


def _profile(number: int, entry: Mapping[str, Any]) -> FunctionProfile:
    place = f"profiles[{number}]"
    for name in entry:
        if name not in FIELDS:
            message = f"{place} has no field {name!r}; it has {', '.join(FIELDS)}"
            raise InvalidConfig(message, field=f"{place}.{name}")
    for name, required in FIELDS.items():
        if required and name not in entry:
            raise InvalidConfig(f"{place} lacks {name!r}", field=f"{place}.{name}")
    try:
        return FunctionProfile(**entry)
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error.message}", field=f"{place}.{error.field}") from error
