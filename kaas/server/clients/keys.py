"""CURVE keys of a server and its remote clients, in files that only their user may read.

A server's folder has `server.toml`, its own pair, and in `clients` a file for each client: its name, its public key and
its quotas. The client's secret is with the client, in a file of its own.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import msgspec
import zmq

from kaas.errors import InvalidConfig
from kaas.server.usage.quotas import Quotas
from kaas.wire.key_files import OWNER, OwnKeys, ServerKeys, check_key, check_owner, load, pair_of, write_new

SERVER_FILE, CLIENTS_FOLDER, REVOKED_FOLDER = "server.toml", "clients", "revoked"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""The names of clients."""
TENANT_DIGITS = 24
"""Hex digits of a tenant. The last 8 are a checksum of the name and of the others: with a damaged one, a client would
be another tenant, whose data is removed. Tenants of earlier versions have 16, without a checksum."""

SECRET_THERE = "--to names another file, or remove this one if no client needs its key"
"""The advice if a client's own file exists already."""

_log = logging.getLogger(__name__)


class ClientKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's entry at a server. administrator: may see all clients' usage, and drain the server. tenant: the owner
    of the name; a client with the name of a revoked client is another tenant, and gets none of its data."""

    name: str
    public_key: str
    administrator: bool = False
    quotas: Quotas = Quotas()
    tenant: str = ""


class RevokedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of a revoked client. purge: its data at the server is removed."""

    name: str
    public_key: str
    tenant: str = ""
    revoked: str = ""
    purge: bool = False


class Keys:
    """The clients' keys of a server's folder, as they are now.

    Fields:
        server: the server's own.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder. An invalid file of a client is logged and admits no client.

        Raises:
            InvalidConfig: the server's file or a folder is missing or invalid, or other users may read some file.
        """
        self._folder = folder / CLIENTS_FOLDER
        _check_folder(folder)
        _check_folder(self._folder)
        self.server = server_keys(folder)
        self._written_then, self._seen = self._written(), self._state()
        self._clients, wrong = self._read()
        for error in wrong:
            if error.fields.get("field") == OWNER:
                raise error
        _log_errors(wrong)

    def by_public_key(self, public_key: str) -> ClientKey | None:
        """Return the client with this key, None if there is none."""
        return self._clients.get(public_key)

    def named(self, name: str) -> ClientKey | None:
        """Return the client with this name, None if there is none."""
        return next((client for client in self._clients.values() if client.name == name), None)

    def names(self) -> frozenset[str]:
        """Return the names of all clients."""
        return frozenset(client.name for client in self._clients.values())

    def tenants(self) -> dict[str, str]:
        """Return the tenant of each name."""
        return {client.name: client.tenant for client in self._clients.values()}

    def purged(self) -> set[tuple[str, str]]:
        """Return the names and tenants whose data the server must remove."""
        wrong: list[InvalidConfig] = []
        found = revoked_keys(self._folder.parent, wrong)
        _log_errors(wrong)
        return {(revoked.name, revoked.tenant) for revoked in found if revoked.purge}

    def refresh(self) -> bool:
        """Read the folder if it has changed. Return True if it has. A file that is invalid, or that other users may
        read, is logged and admits no client."""
        self._written_then, seen = self._written(), self._state()
        if seen == self._seen:
            return False
        self._seen = seen
        self._clients, wrong = self._read()
        _log_errors(wrong)
        return True

    def added(self) -> bool:
        """Return True if a file may have been added since the last `refresh`. This takes a few us only."""
        return self._written() != self._written_then

    def _written(self) -> int:
        with suppress(OSError):
            return self._folder.stat().st_mtime_ns
        return 0

    def _state(self) -> object:
        """Return a value that differs after a file was added, removed, written or given another mode."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
            folder = os.lstat(self._folder)
            return folder.st_mode, sorted((name, found.st_ctime_ns, found.st_ino) for name, found in files)
        return None

    def _read(self) -> tuple[dict[str, ClientKey], list[InvalidConfig]]:
        """Return the clients by key, and the errors of invalid files."""
        clients: dict[str, ClientKey] = {}
        wrong: list[InvalidConfig] = []
        names: set[str] = set()
        try:
            _check_folder(self._folder)
            paths = sorted(self._folder.glob("[!.]*.toml"))
        except InvalidConfig as error:
            return {}, [error]
        for path in paths:
            try:
                client = client_key(path)
                if client.name in names or client.public_key in clients:
                    raise InvalidConfig(f"{path}: another file has the same name or the same key")
            except InvalidConfig as error:
                wrong.append(error)
            else:
                names.add(client.name)
                clients[client.public_key] = client
        return clients, wrong


def new_client(folder: Path, name: str, secret_file: Path) -> OwnKeys:
    """Make a pair of keys for a new client: the public one goes into a server's folder, which is made if it is
    missing, the secret one into a file for the client.

    Raises:
        InvalidConfig: there is a client of this name, or such a file, or other users may read the folder.
    """
    if not NAME.fullmatch(name):
        raise InvalidConfig(f"a client's name is 1 to 64 letters, digits, '_', '-' and '.', not {name!r}", field="name")
    server = prepare(folder)
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    known = folder / CLIENTS_FOLDER / f"{name}.toml"
    there = (
        f"`kaas keys rotate {name}` gives the client of this name another pair, `kaas keys revoke {name}` removes it"
    )
    # first the tenant: a file that was cut has no other one, which would mean a new owner
    write_new(known, {"tenant": _new_tenant(name), "name": name, "public_key": public_key}, there)
    own = OwnKeys(name, public_key, secret_key, server.public_key)
    try:
        write_new(secret_file, msgspec.structs.asdict(own), SECRET_THERE)
    except InvalidConfig:
        known.unlink()
        raise
    return own


def prepare(folder: Path) -> ServerKeys:
    """Make a server's folder and its pair of keys if they are missing. Return the keys.

    Raises:
        InvalidConfig: other users may read it.
    """
    for made in (folder, folder / CLIENTS_FOLDER):
        make_folder(made)
    if not (folder / SERVER_FILE).exists():
        public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
        write_new(folder / SERVER_FILE, {"public_key": public_key, "secret_key": secret_key})
    return server_keys(folder)


def make_folder(folder: Path) -> Path:
    """Make a folder that only its user may use. Return it.

    Raises:
        InvalidConfig
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(f"{folder}: {error.strerror}") from error
    _check_folder(folder)
    return folder


def revoked_keys(folder: Path, wrong: list[InvalidConfig]) -> list[RevokedKey]:
    """Return the revoked clients of a server's folder. wrong: errors of invalid files are added to it."""
    found = []
    for path in sorted((folder / REVOKED_FOLDER).glob("[!.]*.toml")):
        try:
            found.append(load(path, RevokedKey))
        except InvalidConfig as error:
            wrong.append(error)
    return found


def server_keys(folder: Path) -> ServerKeys:
    """Return the server's own keys in a folder.

    Raises:
        InvalidConfig: the file is missing or invalid, or other users may read it.
    """
    return pair_of(folder / SERVER_FILE, ServerKeys)


def client_key(path: Path) -> ClientKey:
    """Read a client's file of a server's folder.

    Raises:
        InvalidConfig: it is invalid, or other users may read it.
    """
    client = load(path, ClientKey)
    if not NAME.fullmatch(client.name):
        raise InvalidConfig(f"{path}: a client's name is 1 to 64 letters, digits, '_', '-' and '.'", field="name")
    check_key(path, "public_key", client.public_key)
    if len(client.tenant) == TENANT_DIGITS and not client.tenant.endswith(_check_digits(client.name, client.tenant)):
        raise InvalidConfig(f"{path}: its tenant is not one of {client.name!r}", field="tenant")
    return client


def _new_tenant(name: str) -> str:
    tenant = token_hex(TENANT_DIGITS // 2 - 4)
    return tenant + _check_digits(name, tenant)


def _check_digits(name: str, tenant: str) -> str:
    return f"{zlib.crc32(f'{name} {tenant[: TENANT_DIGITS - 8]}'.encode()):08x}"


def _log_errors(wrong: Sequence[InvalidConfig]) -> None:
    for error in wrong:
        _log.error("a client's key is not taken: %s", error.message)


def _check_folder(folder: Path) -> None:
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise InvalidConfig(f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidConfig(f"{folder} is no folder of keys")
    check_owner(folder, found, "700")
