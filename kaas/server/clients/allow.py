"""The kTasks that a server allows remote clients: their code shares devices with other clients' code.

A library says nothing about grids, arguments and literals, and a harmless kernel reads any address that it gets. So a
list names whole kTasks by their content key, and a signer signs that key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kaas.errors import InvalidConfig, NotAllowed
from kaas.ktask.images import PROVIDED, Image, Provided
from kaas.ktask.images import check as check_image
from kaas.ktask.library import Library
from kaas.wire.signing import KEY_BYTES, ed25519, signed

HASH = re.compile(r"[0-9a-f]{64}")


class Keyed(Protocol):
    """A kTask, or the facts about one."""

    @property
    def key(self) -> str: ...

    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed code; by default none.

    Fields:
        any: all code of all clients. hashes: keys of kTasks, SHA-256, hex. signers: public Ed25519 keys; a kTask whose
            key one of them has signed is taken from any client.
        libraries: SHA-256, hex, of libraries or of single code images, as of `sha256sum` for a .cubin: clients may
            launch their kernels with any arguments. providers: those that clients may name by `Library.provided`,
            likewise; no other field allows these.

    Raises:
        InvalidConfig
    """

    any: bool = False
    hashes: frozenset[str] = frozenset()
    signers: tuple[bytes, ...] = ()
    providers: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("hashes", "libraries"):
            for text in getattr(self, name):
                if not HASH.fullmatch(text):
                    message = f"a hash is 64 hex digits in lower case, not {text!r}"
                    raise InvalidConfig(message, field=f"code.{name}")
        for key in self.signers:
            if len(key) != KEY_BYTES:
                raise InvalidConfig(f"an Ed25519 key has {KEY_BYTES} bytes, not {len(key)}", field="code.signers")

    def check_library(self, library: str, images: Sequence[Image]) -> None:
        """Check that a library may be uploaded. Where whole kTasks are allowed, every library may: it is only bytes
        until an allowed kTask names it.

        Args:
            library: the hash of these images. images: the library's.

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
        if not (self.hashes or self.signers or self._launched_freely(library, images)):
            raise NotAllowed(f"library {library} is not on this server's list of code", library=library)

    def check_task(self, task: Keyed, libraries: Iterable[Library], signature: bytes) -> None:
        """Check that a kTask may be registered; its libraries have been checked.

        Args:
            task: the kTask. libraries: the kTask's. signature: of the kTask's key, b"" for none.

        Raises:
            NotAllowed
        """
        if self.any or task.key in self.hashes or self._signed(task.key, signature):
            return
        for library in libraries:
            if not self._launched_freely(library.hash, library.images):
                raise NotAllowed(
                    f"kTask {task.label!r} is neither on this server's list of code nor signed by a key that it trusts."
                    f" Its key is {task.key}: the operator lists that under code.hashes. The hash of a library, "
                    f"{library.hash}, allows no kTask there",
                    library=library.hash,
                    task=task.key,
                )

    def _launched_freely(self, library: str, images: Iterable[Image]) -> bool:
        """Return True if clients may launch a library's kernels with any arguments."""
        if self.any or library in self.libraries:
            return True
        code = (image for image in images if image.kind != PROVIDED)
        return all(hashlib.sha256(image.data).hexdigest() in self.libraries for image in code)

    def _signed(self, task_key: str, signature: bytes) -> bool:
        return bool(signature) and any(_verified(key, task_key, signature) for key in self.signers)


def _verified(key: bytes, task_key: str, signature: bytes) -> bool:
    keys = ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        keys.Ed25519PublicKey.from_public_bytes(key).verify(signature, signed(task_key))
    except InvalidSignature:
        return False
    return True
