"""Signatures of kTasks: a client sends them, and a server that trusts their signers verifies them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from kaas.errors import InvalidConfig, MissingPackage
from kaas.wire.key_files import OTHERS

SIGNED = b"kaas ktask "
"""Precedes a kTask's key in the signed bytes, so that the signature is valid for nothing else."""
KEY_BYTES, SIGNATURE_BYTES = 32, 64


def new_signer(path: Path) -> bytes:
    """Make an Ed25519 key in a PEM file that only its user may read. Return the public key.

    Raises:
        InvalidConfig: the file exists or cannot be made. MissingPackage
    """
    key = ed25519().Ed25519PrivateKey.generate()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as opened:
            opened.write(data)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be made: {error.strerror}", field="signer") from error
    return public_key(key)


def public_key(key: Any) -> bytes:
    """Return the public key, 32 bytes. A server trusts it by `code.signers` of its configuration, in hex."""
    public: bytes = key.public_key().public_bytes_raw()
    return public


def signer(path: Path) -> Any:
    """Return the key in a file of `new_signer`.

    Raises:
        InvalidConfig: it is missing or no key, or other users may read it. MissingPackage
    """
    kind = ed25519().Ed25519PrivateKey
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        if path.stat().st_mode & OTHERS:
            raise InvalidConfig(f"{path} is open to other users", field="signer")
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}", field="signer") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidConfig(f"{path} holds no key: {error}", field="signer") from error
    if not isinstance(key, kind):
        raise InvalidConfig(f"{path} holds no Ed25519 key", field="signer")
    return key


def sign(key: Any, task_key: str) -> bytes:
    """Return the signature of a kTask's key."""
    signature: bytes = key.sign(signed(task_key))
    return signature


def read_signatures(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the signatures in a file of `write_signatures`, by the keys of kTasks.

    Raises:
        InvalidConfig
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidConfig(f"signatures stand in a file, of which this is no name: {path!r}", field="signatures")
    try:
        known = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, str])
        return {library: bytes.fromhex(signature) for library, signature in known.items()}
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}", field="signatures") from error
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidConfig(f"{path} holds no signatures: {error}", field="signatures") from error


def write_signatures(path: Path, signatures: Mapping[str, bytes]) -> None:
    """Add signatures to a file.

    Raises:
        InvalidConfig
    """
    known = {**(read_signatures(path) if path.exists() else {}), **signatures}
    data = msgspec.json.encode({library: signature.hex() for library, signature in known.items()})
    try:
        path.write_bytes(msgspec.json.format(data, indent=1) + b"\n")
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be written: {error.strerror}", field="signatures") from error


def signed(task_key: str) -> bytes:
    """Return the bytes that a signature of a kTask signs."""
    return SIGNED + task_key.encode()


def ed25519() -> Any:
    """Return the module of `cryptography`.

    Raises:
        MissingPackage
    """
    try:
        return import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise MissingPackage(
            "signatures of code need the package cryptography", package="cryptography", install="cryptography"
        ) from error
