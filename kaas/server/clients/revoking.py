"""Revocation and replacement of clients' keys. A running server notices a change within a second."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import zmq

from kaas.errors import InvalidConfig, InvalidRequest
from kaas.server.clients.keys import (
    CLIENTS_FOLDER,
    REVOKED_FOLDER,
    SECRET_THERE,
    ClientKey,
    RevokedKey,
    client_key,
    make_folder,
    revoked_keys,
    server_keys,
)
from kaas.wire.key_files import OwnKeys, draft_of, write_new

_PUBLIC_KEY = re.compile(r"^\s*public_key\s*=.*$", re.MULTILINE)


def keys_of_folder(folder: Path) -> tuple[list[ClientKey], list[InvalidConfig], list[RevokedKey]]:
    """Return the clients of a server's folder, the errors of invalid files, and the revoked clients.

    Raises:
        InvalidConfig
    """
    clients, wrong = [], []
    for path in _files(folder / CLIENTS_FOLDER):
        try:
            clients.append(client_key(path))
        except InvalidConfig as error:
            wrong.append(error)
    return clients, wrong, revoked_keys(folder, wrong)


def revoke(folder: Path, name: str, *, purge: bool) -> RevokedKey:
    """Revoke a client's key. purge: its data at the server is removed, at once or when the server starts; otherwise it
    stays until another client gets the name.

    Raises:
        InvalidRequest: there is no such client.
        InvalidConfig: its file cannot be read or moved.
    """
    path = _find(folder, name)
    client = client_key(path)
    revoked = RevokedKey(name, client.public_key, client.tenant, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", purge)
    made = make_folder(folder / REVOKED_FOLDER)
    entry = made / f"{name}-{client.public_key.encode().hex()[:16]}.toml"
    if not entry.exists():  # else it was revoked, and its file could not be removed
        # first: a server that misses the key then finds out if its data is to be removed
        write_new(entry, msgspec.structs.asdict(revoked))
    try:
        path.unlink()
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror}") from error
    return revoked


def rotate(folder: Path, name: str, secret_file: Path) -> OwnKeys:
    """Give a client another pair of keys. Its data at the server stays, and its old key is no longer accepted.

    Raises:
        InvalidRequest: there is no such client.
        InvalidConfig: its file cannot be read or replaced, or there is a secret_file already.
    """
    path = _find(folder, name)
    client = client_key(path)
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    text, found = _PUBLIC_KEY.subn(f"public_key = '{public_key}'", path.read_text(), count=1)
    own = OwnKeys(name, public_key, secret_key, server_keys(folder).public_key)
    with draft_of(path, text) as draft:
        if not found or client_key(draft) != msgspec.structs.replace(client, public_key=public_key):
            raise InvalidConfig(f"{path}: its public_key does not stand in a line of its own", field="public_key")
        write_new(secret_file, msgspec.structs.asdict(own), SECRET_THERE)
        try:
            os.replace(draft, path)
        except OSError:
            secret_file.unlink()
            raise
    return own


def _find(folder: Path, name: str) -> Path:
    """Return the file of a client.

    Raises:
        InvalidRequest
    """
    for path in _files(folder / CLIENTS_FOLDER):
        try:
            if client_key(path).name == name:
                return path
        except InvalidConfig:
            continue  # it admits no client
    raise InvalidRequest(f"no client {name!r} has a key in {folder / CLIENTS_FOLDER}")


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.toml"))
