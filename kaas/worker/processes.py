"""Plain Python processes: how a child is started, says that it is ready, and ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import IO, Any, TypeVar

from kaas.errors import KaasError
from kaas.wire.error_codec import decode_error, encode_error

T = TypeVar("T")

READY, FAILED = b"+", b"-"
"""What a child's word to its parent begins with."""
_LENGTH = Struct("<Q")
"""What stands before the word, which so has an end also if what the child has started holds its line."""


class Child:
    """A process that runs a module's `main`. It has its orders from here, and one word to say: that it is ready, or
    what kept it from that."""

    def __init__(
        self,
        module: str,
        orders: Any,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            orders: what `ordered` gives there; anything that can be pickled. environment: beside what it inherits.
            files: descriptors that it has too, by the same numbers. inherited: of this process's environment; None
                for all of it.

        Raises:
            KaasError: this machine starts no more of them.
        """
        packed = pickle.dumps(orders)
        try:
            self._start(module, {**(os.environ if inherited is None else inherited), **(environment or {})}, files)
        except OSError as error:
            raise KaasError(f"no process of {module} can be started: {error}") from error
        assert self.process.stdin is not None, "a pipe"
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # its end shows in its word
            stdin.write(pickle.dumps(os.getpid()) + packed)

    def _start(self, module: str, environment: Mapping[str, str], files: Sequence[int]) -> None:
        self._word, says = socket.socketpair()
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            with says:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(says.fileno())],
                    stdin=subprocess.PIPE,
                    env={**environment, "PYTHONPATH": paths},
                    pass_fds=(says.fileno(), *files),
                    start_new_session=True,  # Ctrl-C is for the program at the terminal
                )
        except BaseException:
            self._word.close()
            raise

    def kill_group(self) -> None:
        """End it with all that it has started, such as a compiler."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def on_end(self, loop: asyncio.AbstractEventLoop, then: Callable[[str], Any], *, group: bool = False) -> None:
        """Call something in this loop, which is the running one, with how it ended. Before `ready`, or not at all.
        group: what it has started ends with it.

        Raises:
            KaasError: it cannot be watched, and was ended.
        """

        def ended() -> None:
            if group:
                self.kill_group()  # its number is its own until it is waited for
            if self._word.fileno() >= 0:  # `ready` waits, and what it has started may hold the other end
                self._word.shutdown(socket.SHUT_RD)
            then(how_it_ended(self.process.wait()))

        try:
            on_end(loop, self.process.pid, ended)
        except BaseException:
            self.process.kill()
            self.process.wait()
            self._word.close()
            raise

    def wait_ready(self) -> bytes:
        """What it says when it is ready.

        Raises:
            KaasError: what kept it from that.
        """
        said = b""
        with self._word:
            while not _whole(said) and (data := self._word.recv(1 << 16)):
                said += data
        return self._understood(said)

    async def ready(self) -> bytes:
        """As `wait_ready`, in an event loop."""
        loop = asyncio.get_running_loop()
        self._word.setblocking(False)
        said = b""
        with self._word:
            while not _whole(said) and (data := await loop.sock_recv(self._word, 1 << 16)):
                said += data
        return self._understood(said)

    def _understood(self, said: bytes) -> bytes:
        word = said[_LENGTH.size :]
        if _whole(said) and word.startswith(READY):
            return word.removeprefix(READY)
        if _whole(said) and word.startswith(FAILED):
            raise decode_error(word.removeprefix(FAILED))
        self.process.kill()  # it may live on with nothing to say
        raise KaasError(f"process {self.process.pid} ended before it was ready: {how_it_ended(self.process.wait())}")


def _whole(said: bytes) -> bool:
    return len(said) >= _LENGTH.size and len(said) - _LENGTH.size >= _LENGTH.unpack_from(said)[0]


def ordered(
    stdin: IO[bytes],
    end: Callable[[], Any] = lambda: os._exit(0),
    first: Callable[[Any], Any] = lambda _: None,
) -> Any:
    """In a child: its orders. From then on it ends with its parent. first: called with the orders while the process
    still has a single thread.
    """
    parent, orders = pickle.load(stdin), pickle.load(stdin)
    first(orders)
    end_with(parent, end)
    return orders


def end_group() -> None:
    """In a child: end with all that it has started."""
    os.killpg(0, signal.SIGKILL)


def say_ready(file: int, word: bytes) -> None:
    """In a child, once: it is ready."""
    _say(file, READY + word)


def say_failed(file: int, error: KaasError) -> None:
    """In a child, instead: what keeps it from being ready."""
    _say(file, FAILED + encode_error(error))


def _say(file: int, word: bytes) -> None:
    with os.fdopen(file, "wb") as says:
        says.write(_LENGTH.pack(len(word)) + word)


def end_with(parent: int, end: Callable[[], Any]) -> None:
    """Has this process end when its parent does, also if that has just done so."""
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
    """Let this process have as many files open as it may: each program at a pool takes some of them, and where there
    are no more no peer is let in, and ZeroMQ, if it listens, ends the process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def pidfd(pid: int) -> int | None:
    """A file that is readable once the process has ended; None if it has."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def on_end(loop: asyncio.AbstractEventLoop, pid: int, then: Callable[[], Any]) -> None:
    """Call something in this loop, which is the running one, when a process has ended.

    Raises:
        KaasError: it cannot be known when.
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
    """A return code of a subprocess, for people."""
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"
