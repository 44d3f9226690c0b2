"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
"""Loaded here: between fork and exec, in a program with threads, only the call itself is safe."""


def end_with_parent() -> None:
    """Have this process get SIGTERM when its parent ends, whatever ends it (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
