"""The server's cTasks around kTasks: Python functions that its operator names, in processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib import import_module
from typing import Any

from kaas.arguments import Buffer
from kaas.errors import InvalidConfig, StepFailed
from kaas.pool.processes import end_with
from kaas.request import raw_bytes

_ANY = Buffer("value", 1)


class Steps:
    """Belongs to one event loop. A step takes bytes by name, and gives arrays or bytes by name: before a kTask what a
    client sends, and the inputs; after it the outputs, and what the client gets."""

    def __init__(self, named: Mapping[str, str], processes: int, limit_s: float) -> None:
        """named: "module:function" by the name that clients use. limit_s: how long one may take; then its process ends.

        Raises:
            InvalidConfig
        """
        for name, target in named.items():
            module, _, function = target.partition(":")
            if not (module and function):
                raise InvalidConfig(f"steps.{name} is module:function, not {target!r}", field=f"steps.{name}")
        self._named, self._processes, self._limit_s = named, processes, limit_s
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, name: str, values: Mapping[str, Any]) -> dict[str, bytes]:
        """
        Raises:
            StepFailed
        """
        if self._pool is None:  # nobody pays for it who has none
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, spawn, end_with, (os.getpid(), _leave))
        pool, plain = self._pool, {key: bytes(value) for key, value in values.items()}
        try:
            loop, target = asyncio.get_running_loop(), self._named[name]
            return await loop.run_in_executor(pool, carry_out, target, plain, self._limit_s)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None
            raise StepFailed(f"step {name!r}: its process has ended", step=name, error_type="") from error
        except Exception as error:
            kind = type(error).__name__
            raise StepFailed(f"step {name!r}: {kind}: {error}", step=name, error_type=kind) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def carry_out(target: str, values: dict[str, bytes], limit_s: float) -> dict[str, bytes]:
    """In a process of the server's, which ends if it takes too long."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return {name: bytes(raw_bytes(_ANY, value)[0]) for name, value in _function(target)(values).items()}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@cache
def _function(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _leave() -> None:
    os._exit(0)
