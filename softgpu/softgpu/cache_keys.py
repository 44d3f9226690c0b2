"""The names of compiled code in the cache. They need no compiler, so any process can look for what is there."""

from __future__ import annotations

import hashlib

BlockShape = tuple[int, int, int]


def module_key(namespace: str, content: bytes) -> str:
    """Return the key of an image. namespace: of the compiler and the processor (`translation.namespace`)."""
    return hashlib.blake2b(b"\0".join((namespace.encode(), content)), digest_size=20).hexdigest()


def module_entry(module: str) -> str:
    """Return the name of the entry with the description of an image, by the image's key."""
    return f"{module}.module"


def kernel_entry(module: str, name: str, block: BlockShape, *, checked: bool, fenced: bool) -> str:
    """Return the name of the entry with the code of a kernel for blocks of this shape."""
    variant = f"{name}\0{block}" + ("\0memcheck" if checked else "") + ("\0fence" if fenced else "")
    return f"{module}.{hashlib.blake2b(variant.encode(), digest_size=12).hexdigest()}"
