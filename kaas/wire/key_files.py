"""Files of CURVE keys, which only their user may read: a client's own pair, and code for all kinds of key files.

`server.clients.keys` has the files of a server's folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
from zmq.utils import z85

from kaas.errors import InvalidConfig
from kaas.near_field import near_field

LARGEST_FILE_BYTES = 64 << 10
OWNER = "keys.owner"
"""The field of errors about a file of keys that others may read or write."""

OTHERS = 0o077

T = TypeVar("T", bound=msgspec.Struct)


class ServerKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server's pair, as Z85 text. public_key is for clients, secret_key for no other process."""

    public_key: str
    secret_key: str


class OwnKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's pair, and the public key of its server."""

    name: str
    public_key: str
    secret_key: str
    server_key: str


def own_keys(path: Path) -> OwnKeys:
    """Return the keys of a client.

    Raises:
        InvalidConfig: the file is not there, may be read by others, or makes no sense.
    """
    try:
        return pair_of(path, OwnKeys)
    except InvalidConfig as error:
        if not _is_servers(path):
            raise
        own = "its own file is the one that `kaas keys new` or `kaas keys rotate` wrote for it"
        raise InvalidConfig(f"{path} is what the server knows of a client: {own}", field="keys") from error


def _is_servers(path: Path) -> bool:
    """Return True if a file is a server's file about a client: it has a name and no secret."""
    try:
        fields = msgspec.toml.decode(_read_private(path))
    except (InvalidConfig, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return {"name", "public_key"} <= fields.keys() and "secret_key" not in fields


def pair_of(path: Path, kind: type[T]) -> T:
    """Return the keys of a file.

    Raises:
        InvalidConfig: as `load`; or a key is malformed, or the two keys are not of one pair.
    """
    pair = load(path, kind)
    public_key, secret_key = pair.public_key, pair.secret_key  # type: ignore[attr-defined]
    for field, key in (("public_key", public_key), ("secret_key", secret_key)):
        check_key(path, field, key)
    if zmq.curve_public(secret_key.encode()).decode() != public_key:
        raise InvalidConfig(f"{path}: its two keys are not of one pair", field="public_key")
    if isinstance(pair, OwnKeys):
        check_key(path, "server_key", pair.server_key)
    return pair


def check_key(path: Path, field: str, key: str) -> None:
    if not is_key(key):
        raise InvalidConfig(f"{path}: {field} is no CURVE key: 40 letters of Z85", field=field)


def is_key(key: object) -> bool:
    """Return True if a value is a CURVE key, as text."""
    alphabet = z85.Z85CHARS.decode()
    return isinstance(key, str) and len(key) == 40 and all(letter in alphabet for letter in key)


def load(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.toml.decode(_read_private(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        near = near_field(kind, str(error))
        hint = f"; did you mean {near!r}?" if near else ""
        raise InvalidConfig(f"{path}: {error}{hint}") from error


def _read_private(path: Path) -> bytes:
    """
    Raises:
        InvalidConfig: the file is not there, no file, another user's, or others may read or write it.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror}") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE_BYTES:
            raise InvalidConfig(f"{path} is no file of keys")
        check_owner(path, found, "600")
        with os.fdopen(file, "rb", closefd=False) as opened:
            return opened.read(LARGEST_FILE_BYTES)
    finally:
        os.close(file)


def check_owner(path: Path, found: os.stat_result, mode: str) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidConfig(f"{path} belongs to another user", field=OWNER)
    if found.st_mode & OTHERS:
        raise InvalidConfig(f"others may use {path}, which holds keys: chmod {mode} it", field=OWNER)


def write_new(path: Path, fields: dict[str, str | bool], there: str = "") -> None:
    """Write a new file, completely or not at all.

    Args:
        there: advice for the error if the file exists.

    Raises:
        InvalidConfig: the file exists, or cannot be written.
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else f"'{value}'" for name, value in fields.items()}
    lines = "".join(f"{name} = {value}\n" for name, value in texts.items())  # no such value has a quote
    with draft_of(path, lines) as draft:
        try:
            os.link(draft, path)
        except FileExistsError as error:
            hint = f"; {there}" if there else ""
            raise InvalidConfig(f"{path}: {error.strerror}{hint}") from error


@contextmanager
def draft_of(path: Path, text: str) -> Iterator[Path]:
    """Write a text into a new file next to another one, and remove it at the end unless it was renamed.

    Raises:
        InvalidConfig: it cannot be written, or the statement raised an OSError.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "w") as opened:
                opened.write(text)
            yield draft
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror}") from error
