"""Ctrl-C during a measurement: the first one asks it to end, since an exception could strike while it counts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


def never() -> bool:
    """Return False: the measurement goes on."""
    return False


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that returns True after the first Ctrl-C; the second one is a KeyboardInterrupt.

    In a program that ignores SIGINT, and in a thread other than the main one, the function returns False.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or before is signal.SIG_IGN:
        yield never
        return
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
