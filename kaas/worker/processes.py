"""Plain Python processes: a child is started, reports that it is ready, prints lines, and ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import IO, Any, TypeVar

from kaas.errors import KaasError
from kaas.wire.error_codec import decode_error, encode_error

T = TypeVar("T")

READY, FAILED = b"+", b"-"
"""The first byte of a child's word to its parent."""
_LENGTH = Struct("<Q")
"""The length stands before the word: so the word ends even if a process that the child started holds its socket."""


class Child:
    """A process that runs a module's `main`. It gets orders, and sends one word: that it is ready, or its error.

    Fields:
        processor_s: that it took, with processes that it started and waited for; known once it was waited for.
    """

    processor_s = 0.0

    def __init__(
        self,
        module: str,
        orders: Any,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
        inherited: Mapping[str, str] | None = None,
        *,
        pipes: bool = False,
    ) -> None:
        """
        Args:
            orders: the result of `ordered` in the child; anything that can be pickled. environment: variables besides
                the inherited ones. files: descriptors that the child has too, by the same numbers. inherited: the
                variables of this process's environment that the child inherits; None for all of them. pipes: what the
                child writes to stdout and stderr comes in pipes of `process`; else it has those of this process.

        Raises:
            KaasError: the process cannot be started.
        """
        packed = pickle.dumps(orders)
        try:
            variables = {**(os.environ if inherited is None else inherited), **(environment or {})}
            self._start(module, variables, files, subprocess.PIPE if pipes else None)
        except OSError as error:
            raise KaasError(f"no process of {module} can be started: {error}") from error
        assert self.process.stdin is not None, "a pipe"
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # the child has ended: `ready` sees it
            stdin.write(pickle.dumps(os.getpid()) + packed)

    def _start(self, module: str, environment: Mapping[str, str], files: Sequence[int], output: int | None) -> None:
        self._word, child_end = socket.socketpair()
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            with child_end:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(child_end.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**environment, "PYTHONPATH": paths},
                    pass_fds=(child_end.fileno(), *files),
                    start_new_session=True,  # Ctrl-C is for the program at the terminal
                )
        except BaseException:
            self._word.close()
            raise

    def kill_group(self) -> None:
        """End the child with all processes that it has started, such as a compiler."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def on_end(self, loop: asyncio.AbstractEventLoop, then: Callable[[str], Any], *, group: bool = False) -> None:
        """Call `then` in this loop, which is the running one, with a text about the child's end.

        Call this before `ready`, or not at all. group: the processes that the child has started end with it.

        Raises:
            KaasError: the child cannot be watched, and was ended.
        """

        def ended() -> None:
            if group:
                self.kill_group()  # the child has its number until it is waited for
            if self._word.fileno() >= 0:  # `ready` waits, and a process that the child started may hold the other end
                self._word.shutdown(socket.SHUT_RD)
            then(how_it_ended(self._waited()))

        try:
            on_end(loop, self.process.pid, ended)
        except BaseException:
            self.process.kill()
            self.process.wait()
            self._word.close()
            raise

    def pass_on(self, name: str, to_stdout: PrintedLines, to_stderr: PrintedLines) -> None:
        """Print what a child with pipes writes, in threads: a reader of this process's output may be slow."""
        for pipe, printed in ((self.process.stdout, to_stdout), (self.process.stderr, to_stderr)):
            if pipe is not None:
                threading.Thread(target=pass_on, args=(pipe, name, printed), name="kaas-prints", daemon=True).start()

    def wait_ready(self) -> bytes:
        """Wait until the child is ready; return its word.

        Raises:
            KaasError: the child's error, or its end.
        """
        received = b""
        with self._word:
            while not _whole(received) and (data := self._word.recv(1 << 16)):
                received += data
        return self._understood(received)

    async def ready(self) -> bytes:
        """Wait until the child is ready, as `wait_ready` does, in an event loop."""
        loop = asyncio.get_running_loop()
        self._word.setblocking(False)
        received = b""
        with self._word:
            while not _whole(received) and (data := await loop.sock_recv(self._word, 1 << 16)):
                received += data
        return self._understood(received)

    def _understood(self, received: bytes) -> bytes:
        word = received[_LENGTH.size :]
        if _whole(received) and word.startswith(READY):
            return word.removeprefix(READY)
        if _whole(received) and word.startswith(FAILED):
            raise decode_error(word.removeprefix(FAILED))
        self.process.kill()  # it may still run, and has sent no word
        raise KaasError(f"process {self.process.pid} ended before it was ready: {how_it_ended(self._waited())}")

    def _waited(self) -> int:
        """Wait for the child's end, and return its return code."""
        if self.process.returncode is None:
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.processor_s = used.ru_utime + used.ru_stime
        return self.process.returncode


def _whole(received: bytes) -> bool:
    return len(received) >= _LENGTH.size and len(received) - _LENGTH.size >= _LENGTH.unpack_from(received)[0]


def ordered(
    stdin: IO[bytes],
    end: Callable[[], Any] = lambda: os._exit(0),
    first: Callable[[Any], Any] = lambda _: None,
) -> Any:
    """Return the orders of this process, which is a child. From then on it ends with its parent.

    first: called with the orders while the process still has a single thread.
    """
    try:
        parent, orders = pickle.load(stdin), pickle.load(stdin)
    except (EOFError, pickle.UnpicklingError):  # the parent has ended before it had sent them
        end()
        raise
    first(orders)
    end_with(parent, end)
    return orders


def end_group() -> None:
    """End this child with all processes that it has started."""
    os.killpg(0, signal.SIGKILL)


def report_ready(file: int, word: bytes) -> None:
    """Report to the parent, once, that this child is ready."""
    _send(file, READY + word)


def report_failure(file: int, error: KaasError) -> None:
    """Report to the parent, instead of `report_ready`, the error that keeps this child from being ready."""
    _send(file, FAILED + encode_error(error))


def _send(file: int, word: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(file, "wb") as opened:  # the parent has ended: none waits
        opened.write(_LENGTH.pack(len(word)) + word)


def end_with(parent: int, end: Callable[[], Any]) -> None:
    """Call `end` when this process's parent ends, also if the parent has just ended."""
    watched = pidfd(parent)
    if watched is None or os.getppid() != parent:  # another process may have its number by now
        end()
        return

    def watch() -> None:
        ended = select.poll()
        ended.register(watched, select.POLLIN)
        ended.poll()
        end()

    threading.Thread(target=watch, name="kaas-parent", daemon=True).start()


def open_all_files() -> None:
    """Raise this process's limit of open files to the highest.

    Each program at a pool takes some files. A process without free ones lets no peer in; with ZeroMQ listening it ends.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def threads_of(pid: int) -> int:
    """Return the number of threads of a process, 0 if it has ended."""
    return int(_facts(pid)[17])


def wants_processor(pid: int) -> bool:
    """Return True if the main thread of a process runs, or would run if a processor were free."""
    return _facts(pid)[0] == "R"


def _facts(pid: int) -> list[str]:
    """Return what Linux says about a process behind its name; "0" for each fact if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def lacks_files(error: BaseException | None) -> bool:
    """Return True if an error says that this process, or the machine, has no file descriptor left."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def on_end(loop: asyncio.AbstractEventLoop, pid: int, then: Callable[[], Any]) -> None:
    """Call `then` in this loop, which is the running one, when a process has ended.

    Raises:
        KaasError: the process cannot be watched.
    """
    try:
        watched = pidfd(pid)
    except (OSError, OverflowError) as error:  # no such number of a process; or too many files are open
        raise KaasError(f"process {pid} cannot be watched: {error}") from error
    if watched is None:
        loop.call_soon(then)
        return

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        then()

    loop.add_reader(watched, ended)


def how_it_ended(status: int) -> str:
    """Return a text for the return code of a subprocess."""
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"


# --- what a process prints

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
    with contextlib.suppress(OSError):
        to.write(text)
        to.flush()
