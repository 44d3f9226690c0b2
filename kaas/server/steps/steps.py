"""The server's cTasks around kTasks and eTasks: Python functions that its operator names, in processes of their own."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from kaas.errors import InvalidConfig, KaasError, StepFailed
from kaas.import_target import check_target
from kaas.server.steps.step_messages import BEGUN, LENGTH, Gave, Raised, StepCall, head
from kaas.server.steps.turns import StepTurns
from kaas.worker.processes import Child

_log = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long a step may go on after its call was cancelled: to end its process costs about as much as the next one takes
to start, which calls of other clients would wait for."""


class Made(NamedTuple):
    """A value that a step has made; plain bytes have neither dtype nor shape."""

    dtype: str | None
    shape: tuple[int, ...] | None
    data: bytes | bytearray

    def kept(self) -> tuple[str, tuple[int, ...], bytes | bytearray]:
        """Return dtype, shape and data for storing: plain bytes are an array of uint8."""
        return self.dtype or "uint8", (len(self.data),) if self.shape is None else self.shape, self.data


class Steps:
    """Runs steps. A step takes bytes by name and returns arrays or bytes by name: before a kTask it turns the client's
    values into the inputs; after it, it turns the outputs into the client's values. Use it from one event loop only."""

    def __init__(self, named: Mapping[str, str], processes: int, limit_s: float) -> None:
        """named: "module:function" by the name that clients use. limit_s: of a step; then its process ends.

        Raises:
            InvalidConfig
        """
        for name, target in named.items():
            check_target(f"steps.{name}", target)
        self._named, self._limit_s = dict(named), limit_s
        self._turns = StepTurns(processes)
        self._idle: list[_Process] = []
        self._closed = False

    async def open(self) -> None:
        """Start the first process, which checks all names.

        Raises:
            InvalidConfig
        """
        if not self._named:
            return
        try:
            async with asyncio.timeout(self._limit_s):
                self._idle.append(await _started(self._named))
        except TimeoutError as error:
            message = f"the modules of steps take longer than the {self._limit_s:g} s that a step may run"
            raise InvalidConfig(message, field="steps") from error
        except InvalidConfig:
            raise
        except KaasError as error:
            raise InvalidConfig(f"no process of steps starts: {error.message}", field="steps") from error

    async def run(self, name: str, values: Mapping[str, Any], whose: Mapping[str, str] = {}) -> dict[str, Made]:
        """Run a step. That of a cancelled call has GRACE_S to end; then its process ends, and is replaced.

        Args:
            name: of the step.
            values: by name.
            whose: fields for the log; those with the same "client" take turns with others.

        Raises:
            StepFailed
        """
        client = whose.get("client", "")
        await self._turns.take(client)
        step = asyncio.ensure_future(self._limited(name, {key: memoryview(each) for key, each in values.items()}))
        step.add_done_callback(partial(self._done, client))
        try:
            made = await asyncio.shield(step)
        except asyncio.CancelledError:
            self._turns.goes_on(client, step)
            asyncio.get_running_loop().call_later(GRACE_S, step.cancel)
            raise
        except EOFError as error:
            raise _failed(name, whose, "its process has ended") from error
        except KaasError as error:
            raise _failed(name, whose, error.message) from error
        except TimeoutError as error:
            message = f"it ran for longer than {self._limit_s:g} s, and its process was ended"
            raise _failed(name, whose, message) from error
        if isinstance(made, Raised):
            raise _failed(name, whose, f"{made.kind}: {made.text}", made.kind, made.traceback)
        return made

    def _done(self, client: str, step: asyncio.Future[Any]) -> None:
        self._turns.leave(client)
        if not step.cancelled():
            step.exception()  # the error of a cancelled call's step is read here only

    async def _limited(self, name: str, values: Mapping[str, memoryview]) -> dict[str, Made] | Raised:
        """Run a step, for `limit_s` at most, and keep its process for the next one."""
        async with asyncio.timeout(self._limit_s):
            process, made = await self._run(name, values)
        if self._closed:
            process.kill()
        else:
            self._idle.append(process)
        return made

    async def _run(self, name: str, values: Mapping[str, memoryview]) -> tuple[_Process, dict[str, Made] | Raised]:
        """Run a step in an idle or new process. An idle process that has ended before the step is replaced.

        Raises:
            EOFError: the process ended during the step, or was new.
            KaasError: no process starts.
        """
        while True:
            new = not self._idle
            process = await _started(self._named) if new else self._idle.pop()
            try:
                if await process.begins(name, values):
                    return process, await process.made()
            except BaseException:
                process.kill()
                raise
            process.kill()
            if new:
                raise EOFError

    def close(self) -> None:
        """End all processes: idle ones now, others after their step."""
        self._closed = True
        for process in self._idle:
            process.kill()


class _Process:
    """A process that carries out steps, one at a time."""

    def __init__(self, named: dict[str, str]) -> None:
        """Start the process.

        Raises:
            KaasError: this machine starts no more processes.
        """
        self._loop = asyncio.get_running_loop()
        self._killed = False
        try:
            self._connection, its = socket.socketpair()
        except OSError as error:
            raise KaasError(f"no connection to a process: {error}") from error
        self._connection.setblocking(False)
        try:
            with its:
                self._child = Child("kaas.server.steps.step_process", (its.fileno(), named), files=[its.fileno()])
            self._child.on_end(self._loop, lambda _: self._ended())
        except BaseException:
            self._connection.close()
            raise

    async def ready(self) -> None:
        """Wait until the process is ready.

        Raises:
            KaasError: it cannot start.
        """
        await self._child.ready()

    async def begins(self, name: str, values: Mapping[str, memoryview]) -> bool:
        """Begin a step. Return False if the process had ended before."""
        parts: list[Any] = [head(StepCall(name, {key: each.nbytes for key, each in values.items()}))]
        parts += [each.cast("B") for each in values.values()]
        with suppress(ConnectionError):  # its reply shows if it had begun
            for part in parts:
                await self._loop.sock_sendall(self._connection, part)
        try:
            return await self._read(len(BEGUN)) == BEGUN
        except EOFError:
            return False

    async def made(self) -> dict[str, Made] | Raised:
        """Return the result of the step that has begun.

        Raises:
            EOFError: the process has ended.
        """
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        reply = msgspec.msgpack.decode(await self._read(length), type=Gave | Raised)
        if isinstance(reply, Raised):
            return reply
        return {
            name: Made(dtype, shape, await self._read(nbytes)) for name, (dtype, shape, nbytes) in reply.made.items()
        }

    async def _read(self, nbytes: int) -> bytearray:
        """Read exactly `nbytes`.

        Raises:
            EOFError: the process has ended.
        """
        data = bytearray(nbytes)
        rest = memoryview(data)
        while rest:
            try:
                count = await self._loop.sock_recv_into(self._connection, rest)
            except ConnectionError as error:
                raise EOFError from error
            if not count:
                raise EOFError
            rest = rest[count:]
        return data

    def kill(self) -> None:
        """End the process. No caller waits for it."""
        self._killed = True
        self._child.process.kill()
        self._connection.close()

    def _ended(self) -> None:
        if not self._killed:  # another process may still hold its end
            self._connection.shutdown(socket.SHUT_RDWR)


def _failed(name: str, whose: Mapping[str, str], reason: str, kind: str = "", traceback: str = "") -> StepFailed:
    """Log the failure of a step for the operator. Return the error for the client."""
    fields = {"step": name, **whose, "reason": reason, "limit_by": (name, kind or reason)}
    _log.error("a step failed", extra={**fields, "traceback": traceback} if traceback else fields)
    return StepFailed(f"step {name!r}: {reason}", step=name, error_type=kind)


async def _started(named: dict[str, str]) -> _Process:
    """Return a ready process.

    Raises:
        KaasError: it cannot start.
    """
    process = _Process(named)
    try:
        await process.ready()
    except BaseException:
        process.kill()
        raise
    return process
