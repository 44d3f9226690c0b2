"""Ctrl-C during a measurement: the first one asks it to end, since an exception could strike while it counts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any


class Interrupt:
    """Fields: asked: True after the first Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Return True if the measurement has to end."""
        return self.asked

    def handle(self, *_: Any) -> None:
        """Note a Ctrl-C.

        Raises:
            KeyboardInterrupt: at the second one.
        """
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Let Ctrl-C ask for the end until the block ends. A program that ignores SIGINT, and other threads, stay as is."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or before is signal.SIG_IGN:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
