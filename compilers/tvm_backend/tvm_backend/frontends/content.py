"""A model's content as bytes for a hash: equal models give equal bytes in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol


class Digest(Protocol):
    """A hash as hashlib makes them."""

    def update(self, data: Any, /) -> None:
        """Add bytes to the hash."""


def feed(digest: Digest, piece: str | bytes) -> None:
    """Add a piece with its length before it, so that different lists of pieces give different bytes."""
    data = piece.encode() if isinstance(piece, str) else piece
    digest.update(f"{len(data)}:".encode())
    digest.update(data)


def feed_all(digest: Digest, pieces: Iterable[Any]) -> None:
    """Add large pieces of bytes, hashed in parallel: hashlib releases the interpreter's lock while it works."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for piece in threads.map(lambda piece: hashlib.sha256(piece).digest(), pieces):
            digest.update(piece)
