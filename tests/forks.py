"""Uses of a call's future, in a process that was forked from the one that made the call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import Any

import kaas
from kaas.errors import NotInitialized


def uses(future: kaas.Future) -> list[Callable[[], Any]]:
    """Return functions, each of which needs the connection of a call that has not ended."""

    async def awaited() -> Any:
        return await future

    return [
        lambda: future.result(0),
        future.done,
        future.cancel,
        lambda: future.add_done_callback(lambda _: None),
        lambda: concurrent.futures.wait([future], timeout=0),
        lambda: asyncio.run(awaited()),
    ]


def refused_in_a_child(functions: Sequence[Callable[[], Any]]) -> int:
    """Return the number of functions that raise NotInitialized in a forked process."""
    child = os.fork()
    if not child:
        refused = 0
        for function in functions:
            try:
                function()
            except NotInitialized:
                refused += 1
            except BaseException:  # noqa: BLE001 - the child must not return to the test
                break
        os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
