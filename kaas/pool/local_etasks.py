"""eTasks that the pool's own process calls, for clients that it has beside Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kaas.pool.executors.etasks import ETasks, etask_spec
from kaas.pool.executors.transport import Call
from kaas.wire import specs
from kaas.wire.etask_values import packed, pickled, stored


class OwnETasks:
    """Belongs to the pool's event loop."""

    def __init__(self, etasks: ETasks) -> None:
        self._etasks = etasks

    def define(self, label: str, target: Any, args: Sequence[Any], path: Sequence[str]) -> str:
        """Make one known: a class, and what its instance is made with. path: where modules may be found besides. Gives
        its key."""
        code = pickled((target, tuple(args), {}))
        spec = etask_spec(label, code, path)
        self._etasks.register(specs.encode(spec), code)
        return spec.key

    async def call(self, etask: str, client: str, args: Sequence[Any], deadline_s: float | None, retries: int) -> Call:
        """A call whose answer are the buffers of which the instance gives a list."""
        arguments: tuple[list[Any], dict[str, Any]] = (list(args), {})
        parts = packed(arguments)
        refs = () if parts else (await asyncio.to_thread(stored, arguments),)
        header = specs.ETaskCall(etask, client, deadline_s, retries, True, "", parts, "", 0)
        return self._etasks[etask].call(header, specs.encode(header), refs, direct=True)
