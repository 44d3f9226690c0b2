"""Which code a server takes from remote clients: a code image is code, and runs beside everybody's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kaas.errors import InvalidConfig, MissingPackage, NotAllowed
from kaas.images import PROVIDED, Image, Provided
from kaas.images import check as check_image

SIGNED = b"kaas library "
"""Before a library's hash, in what is signed: such a signature is good for nothing else."""
KEY_BYTES, SIGNATURE_BYTES = 32, 64
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Allowed:
    """By default no code at all.

    Fields:
        any: all code of all clients. hashes: SHA-256, hex, of libraries or of single code images: what sha256sum says
            of a .cubin. signers: public Ed25519 keys; what one of them has signed is taken from any client.
        providers: that clients may name by `Library.provided`; nothing else here lets them.

    Raises:
        InvalidConfig
    """

    any: bool = False
    hashes: frozenset[str] = frozenset()
    signers: tuple[bytes, ...] = ()
    providers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for text in self.hashes:
            if not _HASH.fullmatch(text):
                raise InvalidConfig(f"a hash is 64 hex digits in lower case, not {text!r}", field="code.hashes")
        for key in self.signers:
            if len(key) != KEY_BYTES:
                raise InvalidConfig(f"an Ed25519 key has {KEY_BYTES} bytes, not {len(key)}", field="code.signers")

    def check(self, library: str, images: Sequence[Image], signature: bytes) -> None:
        """
        Args:
            library: the hash of these images. signature: of the client's upload, b"" for none.

        Raises:
            NotAllowed, CorruptImage
        """
        for image in images:
            if image.kind != PROVIDED:
                continue
            check_image(image)
            if Provided.of(image).provider not in self.providers:
                raise NotAllowed(
                    f"library {library} names provided code, and this server offers none of that provider",
                    library=library,
                )
        code = [image for image in images if image.kind != PROVIDED]
        if not code or self.any or library in self.hashes or self._signed(library, signature):
            return
        if not all(hashlib.sha256(image.data).hexdigest() in self.hashes for image in code):
            raise NotAllowed(
                f"library {library} is neither on this server's list of code nor signed by a key that it trusts",
                library=library,
            )

    def _signed(self, library: str, signature: bytes) -> bool:
        return bool(signature) and any(_verified(key, library, signature) for key in self.signers)


def signed(library: str) -> bytes:
    """What a signature of a library, by its hash, is of."""
    return SIGNED + library.encode()


def _verified(key: bytes, library: str, signature: bytes) -> bool:
    keys = ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        keys.Ed25519PublicKey.from_public_bytes(key).verify(signature, signed(library))
    except InvalidSignature:
        return False
    return True


def ed25519() -> Any:
    """The module of `cryptography`.

    Raises:
        MissingPackage
    """
    try:
        return import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise MissingPackage(
            "signatures of code need the package cryptography", package="cryptography", install="kaas[signed]"
        ) from error
