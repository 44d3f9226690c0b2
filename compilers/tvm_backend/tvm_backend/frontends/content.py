"""What a model consists of, as bytes for a hash: equal models give equal bytes in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol


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
