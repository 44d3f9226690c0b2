"""What kernels print, as lines of the executor's output: named by client, escaped, and bounded for each client."""

from __future__ import annotations

from collections.abc import Callable

BYTES_PER_MINUTE = 64 << 10
"""Of one client, prefixes not counted. What it prints beyond is left out, and how much."""
MINUTE_S = 60.0
MOST_CLIENTS = 1024
"""Clients whose share is kept apart: those beyond have one in common, so that names cost no memory."""


class PrintedLines:
    """Writes what the kernels of a client have printed. All methods may be called from any thread.

    A line begins with its client's name. Characters that move a terminal's cursor, change its colours or begin a line
    anew are written as escapes, so that no line looks like another client's or like one of the server.
    """

    def __init__(
        self, write: Callable[[str], object], now_s: Callable[[], float], bytes_per_minute: int = BYTES_PER_MINUTE
    ) -> None:
        self._write = write
        self._now_s = now_s
        self._bytes_per_minute = bytes_per_minute
        self._began_s = now_s()
        self._used: dict[str, int] = {}

    def __call__(self, client: str, text: str) -> None:
        now_s = self._now_s()
        if now_s - self._began_s >= MINUTE_S:
            self._began_s, self._used = now_s, {}
        account = client if client in self._used or len(self._used) < MOST_CLIENTS else ""
        data = text.encode(errors="replace")
        left = max(0, self._bytes_per_minute - self._used.get(account, 0))
        told = self._used.get(account, 0) > self._bytes_per_minute
        self._used[account] = self._used.get(account, 0) + len(data)
        shown, start = data[:left].decode(errors="ignore"), f"[client {escaped(client)}] "
        lines = [start + escaped(line) for line in shown.removesuffix("\n").split("\n")] if shown else []
        if len(data) > left and not told:
            most = self._bytes_per_minute
            lines.append(f"{start}(kernels printed more than {most} bytes in a minute: the rest is left out)")
        if lines:
            self._write("\n".join(lines) + "\n")


def escaped(text: str) -> str:
    """With an escape for each character that does more than to appear."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
