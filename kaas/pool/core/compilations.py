"""Code is compiled before the first request of a kTask has a device: so it takes no device, however long it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kaas.errors import CodeUnavailable, CompileLimitExceeded, CompilerDied, KaasError
from kaas.ktask.request import RETRIES
from kaas.pool.background import Background
from kaas.pool.executors.transport import Compilation, WorkerCall, WorkerTransport
from kaas.pool.observing.ledger import Ledger, LedgerEntry

T = TypeVar("T")

_log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""kTasks that are known to be compiled, or why not; of the others the cache of compiled code is asked again."""


class CompilerMeter(Protocol):
    """The account of the processor time that clients' code takes to compile."""

    def compiled(self, client: str, function: str, processor_s: float) -> None:
        """Charge a client for the compilation of a function's code."""


@dataclass(slots=True, eq=False)
class BegunCompilation:
    """A compilation that requests wait for. ended_s: on the loop's clock, None before the end."""

    task: asyncio.Task[KaasError | None]
    ended_s: float | None = None


class Compilations:
    """The compilations of a pool's kTasks. Use an object of this class from one event loop only.

    Fields:
        done: the kTasks whose requests need not wait.
        meter: of a server, whose clients pay.
    """

    def __init__(self, transport: WorkerTransport, background: Background, ledger: Ledger) -> None:
        self._transport, self._background, self._ledger = transport, background, ledger
        self._begun: dict[str, BegunCompilation] = {}
        self._failed: dict[str, KaasError] = {}
        self.done: dict[str, None] = {}
        self.meter: CompilerMeter | None = None

    def wanted(
        self, call: WorkerCall, inputs: Awaitable[Any] | None
    ) -> tuple[BegunCompilation | None, Awaitable[Any] | None]:
        """Return the compilation of a request's kTask, which begins unless it has begun; and what the request waits
        for, its inputs and its code. Awaiting it raises CompileLimitExceeded, CompilerDied or CodeUnavailable
        if there is no code.

        Raises:
            CompileLimitExceeded: it is known that there is no code.
        """
        if not call.task:
            return None, inputs  # an eTask
        if (error := self._failed.get(call.task)) is not None:
            raise error.with_traceback(None)
        if (begun := self._begun.get(call.task)) is None:
            begun = self._begun[call.task] = BegunCompilation(self._background.begin(self._compiled(call)))
        both = self._background.begin(_both(begun.task, inputs))
        both.add_done_callback(lambda done: done.cancelled() or done.exception())  # the queue may refuse the request
        return begun, both

    async def compiled(self, call: WorkerCall) -> None:
        """Wait until a kTask's code is compiled, also if it was before: the cache may have been cleaned meanwhile.

        Raises:
            CompileLimitExceeded, CompilerDied, CodeUnavailable
        """
        self.done.pop(call.task, None)
        if (wait := self.wanted(call, None)[1]) is not None:
            await wait

    async def _compiled(self, call: WorkerCall) -> KaasError | None:
        """Compile the code of a call's kTask; return why there is none."""
        try:
            made = await self._tried(call)
        except CodeUnavailable as error:
            return error
        except (KaasError, OSError) as error:
            _log.warning("%s: no compiler runs ahead of its first request: %s", call.label, error)
            return None
        finally:
            self._begun.pop(call.task).ended_s = asyncio.get_running_loop().time()
        if made.processor_s:
            self._ledger.write(LedgerEntry(call.label, call.client, None, None, {"compile": made.processor_s}))
            if self.meter is not None and not call.session:  # programs of the pool's own user do not pay
                self.meter.compiled(call.client, call.label, made.processor_s)
        if made.error is None:
            _remember(self.done, call.task, None)
        elif isinstance(made.error, CompileLimitExceeded):  # of other errors the code is no cause: it is tried again
            _remember(self._failed, call.task, made.error)
        return made.error

    async def _tried(self, call: WorkerCall) -> Compilation:
        """Compile the code of a call's kTask, again as often as a request whose executor ends runs again."""
        took_s, attempts = 0.0, RETRIES + 1
        for _ in range(attempts):
            made = await self._transport.compile(call)
            if not made.lost:
                return made
            _log.warning("%s: its compiler has ended: %s", call.label, made.lost)
            took_s += made.processor_s
        message = f"its code was not compiled: the compiler has ended, attempt {attempts}: {made.lost}"
        return Compilation(took_s, CompilerDied(message, attempts=attempts, reason=made.lost), made.lost)


async def _both(compiled: asyncio.Task[KaasError | None], inputs: Awaitable[Any] | None) -> None:
    """Wait for code and inputs. The code is for other requests, too: a cancelled one does not cancel it."""
    if (error := await asyncio.shield(compiled)) is not None:
        raise error.with_traceback(None)
    if inputs is not None:
        await inputs


def _remember(known: dict[str, T], task: str, what: T) -> None:
    known[task] = what
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
