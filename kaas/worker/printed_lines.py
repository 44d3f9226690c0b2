"""Lines of text that come from clients' kernels or from their processes, with the name of their origin, bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

BYTES_PER_MINUTE = 64 << 10
"""The text of one origin, without prefixes. Its further text in a minute is left out."""
MINUTE_S = 60.0
MOST_NAMES = 1024
"""Origins with a share of their own. Further ones have one share in common, so that names cost no memory."""


class PrintedLines:
    """Writes the text of several origins, such as clients. Any thread may call the methods.

    A line begins with the name of its origin. Characters that move a terminal's cursor, change its colours or begin a
    new line are written as escapes, so that no line looks like one of another origin or like one of the server.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        now_s: Callable[[], float] = time.monotonic,
        bytes_per_minute: int = BYTES_PER_MINUTE,
        kind: str = "client",
    ) -> None:
        """kind: of the origins."""
        self._kind = kind
        self._write = write
        self._now_s = now_s
        self._bytes_per_minute = bytes_per_minute
        self._began_s = now_s()
        self._used: dict[str, int] = {}

    def __call__(self, name: str, text: str) -> None:
        now_s = self._now_s()
        if now_s - self._began_s >= MINUTE_S:
            self._began_s, self._used = now_s, {}
        account = name if name in self._used or len(self._used) < MOST_NAMES else ""
        data = text.encode(errors="replace")
        left = max(0, self._bytes_per_minute - self._used.get(account, 0))
        reported = self._used.get(account, 0) > self._bytes_per_minute
        self._used[account] = self._used.get(account, 0) + len(data)
        shown, start = data[:left].decode(errors="ignore"), f"[{self._kind} {escaped(name)}] "
        lines = [start + escaped(line) for line in shown.removesuffix("\n").split("\n")] if shown else []
        if len(data) > left and not reported:
            most = self._bytes_per_minute
            lines.append(f"{start}(it printed more than {most} bytes in a minute: the rest is left out)")
        if lines:
            self._write("\n".join(lines) + "\n")


def escaped(text: str) -> str:
    """Return a text with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


PIPE_BYTES = 64 << 10
PAUSE_S = 0.05
"""After each part of a pipe: a process that writes without end must not take the time of this one."""


def pass_on(pipe: IO[bytes], name: str, printed: PrintedLines) -> None:
    """Pass on whole lines of a pipe until its end; a line of more than PIPE_BYTES in parts."""
    rest = b""
    with pipe:
        while data := os.read(pipe.fileno(), PIPE_BYTES):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if not end and len(rest) > PIPE_BYTES:
                whole, rest = rest, b""
            if whole:
                printed(name, whole.decode(errors="replace"))
            time.sleep(PAUSE_S)
    if rest:
        printed(name, rest.decode(errors="replace"))


def write_out(to: IO[str], text: str) -> None:
    """Write a text, unless no process reads it any more, or its disk is full."""
    with suppress(OSError):
        to.write(text)
        to.flush()
