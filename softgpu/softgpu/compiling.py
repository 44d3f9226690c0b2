"""Whether this process compiles code that the cache lacks: one that serves strangers may leave that to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_process = {"compiles": True}
_thread = threading.local()


def forbid() -> None:
    """Let this process compile no image that it loads from now on.

    Code that the cache lacks is then refused with CUDA_ERROR_JIT_COMPILATION_DISABLED.
    """
    _process["compiles"] = False


@contextmanager
def allowed() -> Iterator[None]:
    """Let the images that this thread loads meanwhile be compiled all the same."""
    _thread.compiles = True
    try:
        yield
    finally:
        del _thread.compiles


def is_allowed() -> bool:
    """Return True if an image that this thread loads now may be compiled, with all its kernels."""
    return _process["compiles"] or hasattr(_thread, "compiles")
