"""Futures of calls: a reply that may still be on its way, to be waited for, awaited or cancelled.

A thread that waits for a reply receives replies. `concurrent.futures.wait` and `as_completed` wait for an event that
they register with each future, and asyncio for a callback: a `Future` notices both, and lets a thread receive.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from concurrent.futures._base import CANCELLED
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from kaas.errors import InvalidRequest

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as Waiter

MakeResult = Callable[[Sequence[Any]], Any]
"""Makes the result of a call of the frames of its reply."""


class ReplySource(Protocol):
    """The connection from which replies come."""

    lock: threading.Lock
    """Guards the state of each `PendingReply`."""

    def check_process(self) -> None:
        """Check that this process made the calls, since the connection is another process's else.

        Raises:
            NotInitialized: this process was forked from the one that made the calls.
        """
        ...

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:
        """Wait for the end of a call, or for timeout_s seconds; with 0, take only replies that have come."""
        ...

    def watch(self, pending: PendingReply) -> None:
        """Receive the reply although no caller waits, since a callback needs its end. Call it with the lock held."""
        ...

    def forget(self, pending: PendingReply) -> None:
        """Take in that a call was cancelled."""
        ...

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call callbacks in a thread in which they may wait for other calls."""
        ...


class PendingReply:
    """The reply to a call, or its place until it comes.

    Fields:
        number: that of the call. ended: True once there are frames or an error, or the call was cancelled.
        best_effort: the request ran on what shares leave, since it would have been late for its promise.
        waiting: locks of the waiting threads, which are released at the end. An Event's own lock could stay locked
            if a thread is interrupted in the Event.
    """

    __slots__ = (
        "__weakref__", "best_effort", "callbacks", "cancelled", "ended", "error", "frames", "number", "source",
        "waiting",
    )  # fmt: skip

    traceparent: str = ""

    def __init__(self, source: ReplySource, number: int) -> None:
        self.source = source
        self.number = number
        self.ended = False
        self.cancelled = False
        self.best_effort = False
        self.frames: Sequence[Any] = ()
        self.error: BaseException | None = None
        self.callbacks: list[Callable[[], Any]] = []
        self.waiting: list[threading.Lock] = []

    def end(self, frames: Sequence[Any] = (), error: BaseException | None = None, *, cancelled: bool = False) -> bool:
        """End the call with frames, an error or a cancellation. Return True if it had not ended before."""
        with self.source.lock:
            if self.ended:
                return False
            callbacks = self.settle(frames, error, cancelled)
        if callbacks:
            self.source.call(callbacks)
        return True

    def settle(
        self, frames: Sequence[Any], error: BaseException | None, cancelled: bool = False
    ) -> Sequence[Callable[[], Any]]:
        """End a call that has not ended, with the lock held, and return its callbacks, to be called without the lock.

        The callbacks are dropped here, since they refer to futures that refer to this object.
        """
        self.frames, self.error, self.cancelled = frames, error, cancelled
        for turn in self.waiting:
            if turn.locked():
                turn.release()
        callbacks, self.callbacks = self.callbacks, []
        self.ended = True  # last: an interrupted thread has not ended the call, or has its callbacks
        return callbacks

    def when_ended(self, callback: Callable[[], Any]) -> None:
        """Call a callback at the end of the call, or now if it has ended.

        Raises:
            NotInitialized: the call has not ended, and this process was forked from the one that made it.
        """
        if not self.ended:
            self.source.check_process()
        with self.source.lock:
            if not self.ended:
                self.callbacks.append(callback)
                if len(self.callbacks) == 1:
                    self.source.watch(self)
                return
        self.source.call([callback])


class Future(concurrent.futures.Future[Any]):
    """The result of `kaas.call` and `kaas.Client.call`: a `concurrent.futures.Future` that can be awaited too.

    Any number of threads and event loops may wait for it. Its value is the output's array, read-only; for several
    outputs a named tuple of them, in declared order. All functions of `concurrent.futures` and asyncio take it, except
    those that take coroutines only, as `asyncio.create_task`.
    """

    def __init__(self, pending: PendingReply, make: MakeResult) -> None:
        # without the base's __init__: `__getattr__` calls it for futures that need it
        self._pending = pending
        self._make = make
        self._made: tuple[Any, BaseException | None] | None = None
        self._watched = False

    def __getattr__(self, name: str) -> Any:
        """Make the inherited attributes at the first access.

        They take several times as long as the rest of a future, and most futures only need `result` and `await`.
        """
        if name not in _INHERITED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._pending.source.lock:
            if name not in self.__dict__:  # all at once: other threads may access them already
                made = concurrent.futures.Future[Any]()
                self.__dict__.update({**vars(made), "_waiters": _Waiters(self)})
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value, and return it.

        Args:
            timeout: seconds to wait at most; the call goes on after it.

        Raises:
            KaasError: the error of the call, with its fields and its cause.
            TimeoutError: the timeout is over. `DeadlineExceeded`, the error of a deadline, is a TimeoutError too.
            concurrent.futures.CancelledError: the call was cancelled.
        """
        self._wait(timeout)
        value, error = self._outcome()
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the error refers to this frame, and must not be referred to by it
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the call, and return its error; None if there is a value.

        Raises:
            TimeoutError, concurrent.futures.CancelledError
        """
        self._wait(timeout)
        return self._outcome()[1]

    def done(self) -> bool:
        """Return True if there is a value or an error, or the call was cancelled."""
        pending = self._pending
        if not pending.ended:
            pending.source.wait(pending, 0)
        return pending.ended

    def running(self) -> bool:
        """Return False: a call can be cancelled as long as it has no reply."""
        return False

    def cancelled(self) -> bool:
        """Return True if the call was cancelled."""
        return self._pending.cancelled

    @property
    def best_effort(self) -> bool:
        """True if the reply has come, and the request ran on what shares leave: it would have been late for `slo_s`."""
        return self._pending.best_effort

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of the server's span, after the reply to a call with `trace`; else ""."""
        return self._pending.traceparent

    def cancel(self) -> bool:
        """Cancel the call, and return True if it is cancelled; it is not if it had ended.

        A queued request does not run; the slot of a running one is free when its kernels end.

        Raises:
            NotInitialized: the call has not ended, and this process was forked from the one that made it.
        """
        pending = self._pending
        if not pending.ended:
            pending.source.check_process()
            if pending.end(cancelled=True):
                pending.source.forget(pending)
        return pending.cancelled

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Call fn with this future when the call has ended, or at once if it has.

        fn runs in the event loop that runs here; if none does, in the thread that receives the reply.
        """
        if self._pending.ended:
            self._settle()
            super().add_done_callback(fn)  # type: ignore[arg-type]
            return
        loop = running_loop()
        super().add_done_callback(fn if loop is None else _OnLoop(fn, loop))  # type: ignore[arg-type]
        self._watch()

    def remove_done_callback(self, fn: Callable[[Future], Any]) -> int:
        """Remove fn from the callbacks, as asyncio's futures do, and return how often it was among them."""
        unwanted = (fn, _OnLoop(fn, None))
        with self._condition:
            callbacks: list[Any] = vars(self)["_done_callbacks"]
            left = [callback for callback in callbacks if callback not in unwanted]
            removed = len(callbacks) - len(left)
            callbacks[:] = left
        return removed

    def __await__(self) -> Generator[Any, None, Any]:
        """Await the value in any event loop. A cancelled awaiter cancels the call."""
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

    def _wait(self, timeout: float | None) -> None:
        """Wait for the end of the call.

        Raises:
            TimeoutError, concurrent.futures.CancelledError
        """
        pending = self._pending
        if not pending.ended:
            pending.source.wait(pending, timeout)
            if not pending.ended:
                raise TimeoutError(f"no reply within {timeout} s")
        if pending.cancelled:
            raise CancelledError

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """Return the value and the error of a call that has ended; one of both is None."""
        if self._made is None:
            error = self._pending.error
            try:
                self._made = (self._make(self._pending.frames) if error is None else None), error
            except Exception as unmade:  # noqa: BLE001 - the waiting caller gets it
                self._made = None, unmade
        return self._made

    # --- the inherited state, for the functions of `concurrent.futures` and asyncio that use it

    def _watch(self) -> None:
        """Settle the future when the reply comes, even if no thread waits in `result`."""
        if not self._watched:
            self._pending.when_ended(self._settle)
            self._watched = True

    def _settle(self) -> None:
        """Set the inherited state to the outcome of the call. Of several threads at a time the first one counts."""
        if super().done():
            return
        if self._pending.cancelled:
            super().cancel()
            with self._condition:
                if self._state == CANCELLED:
                    super().set_running_or_notify_cancel()
            return
        value, error = self._outcome()
        with suppress(InvalidStateError):  # another thread was first
            if error is None:
                super().set_result(value)
            else:
                super().set_exception(error)

    def set_result(self, result: Any) -> NoReturn:  # noqa: ARG002
        """Refuse a result: only the pool ends this future.

        Raises:
            concurrent.futures.InvalidStateError: always.
        """
        raise self._invalid_state()

    def set_exception(self, exception: BaseException | None) -> NoReturn:  # noqa: ARG002
        """Raise as `set_result` does."""
        raise self._invalid_state()

    def set_running_or_notify_cancel(self) -> NoReturn:
        """Raise as `set_result` does."""
        raise self._invalid_state()

    def _invalid_state(self) -> InvalidStateError:
        return InvalidStateError(f"{self!r}: the reply comes from the pool; a program can only cancel()")

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest("the reply to a call comes to this process only: pass on its result()")

    def __repr__(self) -> str:
        pending = self._pending
        if not pending.ended:
            state = "pending"
        elif pending.cancelled:
            state = "cancelled"
        else:
            state = "finished" if pending.error is None else f"raised {type(pending.error).__name__}"
        return f"<kaas.Future {pending.number} {state}>"


_INHERITED = frozenset(vars(concurrent.futures.Future()))


class _Waiters(list[Any]):
    """The list in which `concurrent.futures.wait` and `as_completed` register: the reply is watched from then on."""

    def __init__(self, future: Future) -> None:
        super().__init__()
        self._future = weakref.ref(future)  # a cycle would keep arrays until the garbage collector comes

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        future = self._future()
        if future is not None:
            future._watch()


@dataclass(frozen=True, slots=True)
class _OnLoop:
    """A callback that was added in an event loop, and is called in it, as asyncio's futures do."""

    fn: Callable[[Future], Any]
    loop: AbstractEventLoop | None = field(compare=False)

    def __call__(self, future: Future) -> None:
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self.fn, future)
        except RuntimeError:  # it is closed
            self.fn(future)


def running_loop() -> AbstractEventLoop | None:
    """Return the event loop that runs in this thread, without an import of asyncio, which takes a while."""
    events: Any = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


def _wake(loop: AbstractEventLoop, waiter: Waiter[None]) -> None:
    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
