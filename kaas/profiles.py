"""Files of profiles: the times and memory of functions, by which a policy knows them before it has run them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, replace
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import msgspec

from kaas.config import Config, FunctionProfile
from kaas.errors import InvalidConfig
from kaas.output_files import output_file, write_whole

FIELDS = {each.name: each.default is MISSING for each in fields(FunctionProfile)}
"""The fields of a profile -> True if each profile must have it."""
_LIST, _LINE = msgspec.json.Decoder(list[dict[str, Any]]), msgspec.json.Decoder(dict[str, Any])


def with_profiles(config: Config) -> Config:
    """Return a configuration with the profiles of its file in the place of the file's name, if it names one.

    Raises:
        InvalidConfig: the file cannot be read, or is no list of profiles. The message has the file and the place in it.
    """
    path = config.profiles
    return replace(config, profiles=read_profiles(path)) if isinstance(path, str) else config


def read_profiles(path: str | Path) -> tuple[FunctionProfile, ...]:
    """Return the profiles of a file: a list in JSON, or one on each line.

    Raises:
        InvalidConfig: the file cannot be read, or holds none. The message has the file and the place in it.
    """
    try:
        data = Path(path).read_bytes().strip()
        listed = data.startswith(b"[") or not data
        entries = _LIST.decode(data) if listed else _LINE.decode_lines(data)
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


def keep_profile(path: Path, profile: FunctionProfile) -> None:
    """Write a profile into a file, in the place of the one of this function and kind of device, if there is one.

    Another program may write its own profiles into the same file meanwhile. The file is replaced whole: a list if it is
    named .json, else one profile on each line.

    Raises:
        InvalidConfig: the file holds something else. InvalidRequest: it is no file that can be written. OSError
    """
    with _alone(output_file(path).parent):
        kept = {(each.function, each.kind): each for each in (read_profiles(path) if path.exists() else ())}
        kept[profile.function, profile.kind] = profile
        encoded = [msgspec.json.encode(_shown(each)) for each in kept.values()]
        listed = path.suffix == ".json"
        write_whole(path, b"[" + b",\n".join(encoded) + b"]\n" if listed else b"\n".join(encoded) + b"\n")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only program that writes profiles into a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _shown(profile: FunctionProfile) -> dict[str, Any]:
    """Return a profile as files have it: without the fields that have their defaults."""
    told = asdict(profile)
    return {each.name: told[each.name] for each in fields(profile) if told[each.name] != each.default}
