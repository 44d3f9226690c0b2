"""The answer to a call, which need not have come yet: to be waited for, awaited or cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from kaas.errors import InvalidRequest

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as Waiter

_UNMADE: Any = object()


class Source(Protocol):
    """Where an answer comes from."""

    lock: threading.Lock
    """Guards what is known of each."""

    def wait(self, pending: Pending, timeout_s: float | None) -> None:
        """Until it has ended, or the time is up; with 0, what has already come is taken."""
        ...

    def watch(self, pending: Pending) -> None:
        """Somebody wants to hear when it ends, and does not wait. Called with the lock held."""
        ...

    def forget(self, pending: Pending) -> None:
        """It was cancelled."""
        ...

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call what waited for an end, where it may wait for others in turn."""
        ...


class Pending:
    """What came of a question, or will. number: of the question. ended: whether it is here; then frames or an error
    are, unless it was cancelled. waiting: to be set when it is, of each thread that waits."""

    __slots__ = ("callbacks", "cancelled", "ended", "error", "frames", "number", "source", "waiting")

    def __init__(self, source: Source, number: int) -> None:
        self.source = source
        self.number = number
        self.ended = False
        self.cancelled = False
        self.frames: Sequence[Any] = ()
        self.error: BaseException | None = None
        self.callbacks: list[Callable[[], Any]] = []
        self.waiting: list[threading.Event] = []

    def end(self, frames: Sequence[Any] = (), error: BaseException | None = None, *, cancelled: bool = False) -> bool:
        """This came of it; whether nothing had."""
        with self.source.lock:
            if self.ended:
                return False
            self.settle(frames, error, cancelled)
        if self.callbacks:
            self.source.call(self.callbacks)
        return True

    def settle(self, frames: Sequence[Any], error: BaseException | None, cancelled: bool = False) -> None:
        """As `end`, of what had not ended, with the lock held: its callbacks are to be called without it."""
        self.frames, self.error, self.cancelled = frames, error, cancelled
        self.ended = True
        for event in self.waiting:
            event.set()

    def when_ended(self, callback: Callable[[], Any]) -> None:
        with self.source.lock:
            if not self.ended:
                self.callbacks.append(callback)
                if len(self.callbacks) == 1:
                    self.source.watch(self)
                return
        self.source.call([callback])


class Future:
    """What `kaas.call` gives, for any number of threads and for any event loop.

    Its value is the output's array, read-only; of several outputs a named tuple of them, in declared order.
    """

    __slots__ = ("__weakref__", "_make", "_pending", "_value")

    def __init__(self, pending: Pending, make: Callable[[Sequence[Any]], Any]) -> None:
        self._pending = pending
        self._make = make
        self._value = _UNMADE

    def result(self, timeout: float | None = None) -> Any:
        """The value, once it is there.

        Args:
            timeout: seconds to wait at most; the call goes on after it.

        Raises:
            KaasError: of the call, with its fields and its cause. TimeoutError: the time is up; of a deadline it is
                `DeadlineExceeded`, which is one too. concurrent.futures.CancelledError
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame, and must not be referred to by it
        if self._value is _UNMADE:
            self._value = self._make(self._pending.frames)
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` raises for the call itself; None if there is a value.

        Raises:
            TimeoutError, concurrent.futures.CancelledError
        """
        pending = self._pending
        if not pending.ended:
            pending.source.wait(pending, timeout)
            if not pending.ended:
                raise TimeoutError(f"no answer within {timeout} s")
        if pending.cancelled:
            raise CancelledError
        return pending.error

    def done(self) -> bool:
        """Whether there is a value or an error, or it was cancelled."""
        pending = self._pending
        if not pending.ended:
            pending.source.wait(pending, 0)
        return pending.ended

    def cancelled(self) -> bool:
        return self._pending.cancelled

    def cancel(self) -> bool:
        """Nobody waits for it any more: if it is queued, it does not run; if it runs, its slot is free when its kernels
        end. Returns whether it is cancelled; it is not if it had ended."""
        pending = self._pending
        if pending.end(cancelled=True):
            pending.source.forget(pending)
        return pending.cancelled

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Have fn called with this future when it has ended, in whichever thread notices, or here if it has."""
        self._pending.when_ended(lambda: fn(self))

    def __await__(self) -> Generator[Any, None, Any]:
        """In any event loop. Cancelling who awaits it cancels the call."""
        import asyncio

        if not self._pending.ended:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._pending.when_ended(lambda: _wake(loop, waiter))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._pending.cancelled:
            raise asyncio.CancelledError
        return self.result()

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest("the answer to a call comes to this process only: pass on its result()")

    def __repr__(self) -> str:
        pending = self._pending
        if not pending.ended:
            state = "pending"
        elif pending.cancelled:
            state = "cancelled"
        else:
            state = "finished" if pending.error is None else f"raised {type(pending.error).__name__}"
        return f"<kaas.Future {pending.number} {state}>"


def _wake(loop: AbstractEventLoop, waiter: Waiter[None]) -> None:
    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
