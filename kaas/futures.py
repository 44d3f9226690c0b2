"""The answer to a call, which need not have come yet: to be waited for, awaited or cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as Waiter

_log = logging.getLogger(__name__)
_UNMADE: Any = object()


class Receiving(Protocol):
    """Where answers come from, as futures see it."""

    lock: threading.Lock
    """Guards what futures know."""

    def wait(self, future: Future, timeout_s: float | None) -> None:
        """Until the future has ended, or the time is up; with 0, what has already come is taken."""
        ...

    def watch(self, future: Future) -> None:
        """Somebody wants to hear when it ends, and does not wait. Called with the lock held."""
        ...

    def forget(self, future: Future) -> None:
        """It was cancelled."""
        ...


class Future:
    """What `kaas.call` gives, for any number of threads and for any event loop.

    Its value is the output's array, read-only; of several outputs a named tuple of them, in declared order.
    """

    __slots__ = ("__weakref__", "_callbacks", "_cancelled", "_error", "_frames", "_make", "_receiving", "_value",
                 "ended", "number", "waiting")  # fmt: skip

    def __init__(self, receiving: Receiving, number: int, make: Callable[[Sequence[Any]], Any]) -> None:
        self._receiving = receiving
        self._make = make
        self._frames: Sequence[Any] = ()
        self._value = _UNMADE
        self._error: BaseException | None = None
        self._cancelled = False
        self._callbacks: list[Callable[[Future], Any]] = []
        self.number = number
        self.ended = False
        self.waiting: list[threading.Event] = []

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
            self._value = self._make(self._frames)
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` raises for the call itself; None if there is a value.

        Raises:
            TimeoutError, concurrent.futures.CancelledError
        """
        if not self.ended:
            self._receiving.wait(self, timeout)
            if not self.ended:
                raise TimeoutError(f"no answer within {timeout} s")
        if self._cancelled:
            raise CancelledError
        return self._error

    def done(self) -> bool:
        """Whether there is a value or an error, or it was cancelled."""
        if not self.ended:
            self._receiving.wait(self, 0)
        return self.ended

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> bool:
        """Nobody waits for it any more: if it is queued, it does not run; if it runs, its slot is free when its kernels
        end. Returns whether it is cancelled; it is not if it had ended."""
        if self.end(cancelled=True):
            self._receiving.forget(self)
        return self._cancelled

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Have fn called with this future when it has ended, in whichever thread notices, or here if it has."""
        with self._receiving.lock:
            if not self.ended:
                self._callbacks.append(fn)
                if len(self._callbacks) == 1:
                    self._receiving.watch(self)
                return
        self._call(fn)

    def __await__(self) -> Generator[Any, None, Any]:
        """In any event loop. Cancelling who awaits it cancels the call."""
        import asyncio

        if not self.ended:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self.add_done_callback(lambda _: _wake(loop, waiter))
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._cancelled:
            raise asyncio.CancelledError
        return self.result()

    def end(self, frames: Sequence[Any] = (), error: BaseException | None = None, *, cancelled: bool = False) -> bool:
        """Give it what came of the call; whether nothing had."""
        with self._receiving.lock:
            if self.ended:
                return False
            self._frames, self._error, self._cancelled = frames, error, cancelled
            self.ended = True
            callbacks = self._callbacks
            for event in self.waiting:
                event.set()
        for fn in callbacks:
            self._call(fn)
        return True

    def _call(self, fn: Callable[[Future], Any]) -> None:
        try:
            fn(self)
        except Exception:  # noqa: BLE001 - it is of whoever added it; the others are called too
            _log.exception("a callback of %r raised", self)

    def __repr__(self) -> str:
        if not self.ended:
            state = "pending"
        elif self._cancelled:
            state = "cancelled"
        else:
            state = "finished" if self._error is None else f"raised {type(self._error).__name__}"
        return f"<kaas.Future {self.number} {state}>"


def _wake(loop: AbstractEventLoop, waiter: Waiter[None]) -> None:
    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
