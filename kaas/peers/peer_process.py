"""A process of a side: it reports by lines, each within a limit, and its last words on stderr say why it failed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from select import POLLIN, poll
from time import monotonic
from typing import Self

LIMIT_S = 300.0
"""The longest time until a line, or until the process ends: a first start may fill caches, of compiled code too."""


class PeerProcess:
    """A Python process with a program. As a context, it is killed if it has not ended when the context does."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Start the process. variables: of its environment, in addition to this process's."""
        self._limit_s, self._read = limit_s, b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._orders, self._replies = self._child.stdin, self._child.stdout

    def __enter__(self) -> Self:
        """Return the process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._child.kill()  # does nothing to a process that has ended
        self._child.wait()
        for file in (self._orders, self._replies, self._errors):
            file.close()

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.poll() is not None

    def order(self, word: str) -> None:
        """Write a line to the process's stdin.

        Raises:
            ChildProcessError: the process has ended.
        """
        try:
            self._orders.write(f"{word}\n".encode())
        except BrokenPipeError as error:
            raise self._failed("ended") from error

    def expect(self, word: str) -> None:
        """Wait for the next line of the process's stdout, which has to be this one.

        Raises:
            ChildProcessError: the line is another one, or does not come within the limit, or the process has ended.
        """
        ready, deadline_s = poll(), monotonic() + self._limit_s
        ready.register(self._replies, POLLIN)
        while b"\n" not in self._read:
            if not ready.poll(max(0.0, deadline_s - monotonic()) * 1e3):
                raise self._failed(f"did not say {word!r} within {self._limit_s:g} s")
            if not (more := os.read(self._replies.fileno(), 4096)):
                self.end()
                raise self._failed(f"ended before it said {word!r}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        if line != word.encode():
            raise self._failed(f"said {line.decode(errors='replace')!r}, not {word!r}")

    def end(self) -> None:
        """Wait for the end of the process, which gets no more orders.

        Raises:
            ChildProcessError: the process ended with an error, or not within the limit.
        """
        self._orders.close()
        try:
            status = self._child.wait(self._limit_s)
        except subprocess.TimeoutExpired as error:
            raise self._failed(f"did not end within {self._limit_s:g} s") from error
        if status:
            raise self._failed(f"ended with status {status}")

    def _failed(self, how: str) -> ChildProcessError:
        """Return the error: its message ends with the last line of the process's stderr, a note has all lines."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        error = ChildProcessError(f"the process {how}{last and ': '}{last.strip()}")
        error.add_note("\n".join(lines))
        return error
