"""What a model consists of, as bytes for a hash: equal models give equal bytes in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tvm_backend.frontends.parts import Part


class Digest(Protocol):
    """A hash as hashlib makes them."""

    def update(self, data: Any, /) -> None: ...


def feed(digest: Digest, piece: str | bytes) -> None:
    """A piece with its length before it, so that no two lists of pieces look alike."""
    data = piece.encode() if isinstance(piece, str) else piece
    digest.update(f"{len(data)}:".encode())
    digest.update(data)


def feed_all(digest: Digest, pieces: Iterable[Any]) -> None:
    """Large pieces of bytes, hashed beside each other: a hash leaves the interpreter to others while it works."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for piece in threads.map(lambda piece: hashlib.sha256(piece).digest(), pieces):
            digest.update(piece)


def feed_parts(digest: Digest, parts: Sequence[Part]) -> None:
    """Relax modules: TVM's hash of their structure, which leaves the constants out, and these in order."""
    import tvm
    import tvm_ffi

    for part in parts:
        structure = tvm_ffi.structural_hash(part.module, skip_tensor_content=True)
        feed(digest, f"{part.batch_size} {part.function} {part.inputs} {structure}")
        constants: list[Any] = []
        for _, function in sorted(part.module.functions.items(), key=lambda item: item[0].name_hint):
            tvm_ffi.structural_walk(function, (tvm.ir.GenericConst, constants.append))
        for constant in constants:
            feed(digest, f"{constant.value.dtype} {tuple(constant.value.shape)}")
        feed_all(digest, (constant.value.numpy().reshape(-1).view("uint8") for constant in constants))
