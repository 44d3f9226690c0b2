"""The server's cTasks around kTasks and eTasks: Python functions that its operator names, in processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kaas.arguments import Buffer
from kaas.errors import InvalidConfig, StepFailed
from kaas.pool.processes import end_with
from kaas.request import raw_bytes

_ANY = Buffer("value", 1)

T = TypeVar("T")


class Made(NamedTuple):
    """What a step gives under one name; plain bytes are an array of uint8."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Raised(NamedTuple):
    """What a step raised: exceptions may hold what cannot travel."""

    kind: str
    text: str


class Steps:
    """Belongs to one event loop. A step takes bytes by name, and gives arrays or bytes by name: before a kTask what a
    client sends, and the inputs; after it the outputs, and what the client gets."""

    def __init__(self, named: Mapping[str, str], processes: int, limit_s: float) -> None:
        """named: "module:function" by the name that clients use. limit_s: how long one may take; then its process ends.

        Raises:
            InvalidConfig
        """
        for name, target in named.items():
            check_target(f"steps.{name}", target)
        self._named, self._limit_s = named, limit_s
        self._room = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._closed = False

    async def run(self, name: str, values: Mapping[str, Any]) -> dict[str, Made]:
        """If the wait for this is cancelled, the step's process is ended, and replaced.

        Raises:
            StepFailed
        """
        plain = {key: bytes(value) for key, value in values.items()}
        async with self._room:
            process = self._idle.pop() if self._idle else _Process()
            try:
                async with asyncio.timeout(self._limit_s):
                    made = await process.call(carry_out, self._named[name], plain)
            except BrokenProcessPool as error:
                raise StepFailed(f"step {name!r}: its process has ended", step=name, error_type="") from error
            except TimeoutError as error:
                process.kill()
                message = f"step {name!r}: it ran for longer than {self._limit_s:g} s, and its process was ended"
                raise StepFailed(message, step=name, error_type="") from error
            except asyncio.CancelledError:
                process.kill()
                raise
        if self._closed:
            process.kill()
        else:
            self._idle.append(process)
        if isinstance(made, Raised):
            raise StepFailed(f"step {name!r}: {made.kind}: {made.text}", step=name, error_type=made.kind)
        return made

    def close(self) -> None:
        self._closed = True
        for process in self._idle:
            process.kill()


class _Process:
    """One that carries out steps, one at a time. It starts with the first."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, end_with, (os.getpid(), _leave))
        self._pid = 0

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """
        Raises:
            BrokenProcessPool: it has ended.
        """
        loop = asyncio.get_running_loop()
        if not self._pid:
            self._pid = await loop.run_in_executor(self._pool, os.getpid)
        return await loop.run_in_executor(self._pool, function, *args)

    def kill(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._pid:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(self._pid, signal.SIGKILL)


def check_target(field: str, target: str) -> None:
    """
    Raises:
        InvalidConfig
    """
    module, _, function = target.partition(":")
    if not (module and function):
        raise InvalidConfig(f"{field} is module:function, not {target!r}", field=field)


def carry_out(target: str, values: dict[str, bytes]) -> dict[str, Made] | Raised:
    """In a process of the server's."""
    try:
        return {name: _made(value) for name, value in _function(target)(values).items()}
    except Exception as error:  # noqa: BLE001 - whatever the operator's function raises, the client is told
        return Raised(type(error).__name__, str(error))


def _made(value: Any) -> Made:
    flat, dtype = raw_bytes(_ANY, value)
    shape = (len(flat),) if dtype is None else np.shape(value)
    return Made(dtype or "uint8", shape, bytes(flat))


@cache
def _function(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _leave() -> None:
    os._exit(0)
