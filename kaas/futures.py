"""The answer to a call, which need not have come yet: to be waited for, awaited or cancelled.

Answers are received by the thread that waits for one. `concurrent.futures.wait` and `as_completed` wait for an event
that they register with each future, and asyncio for a callback: a `Future` notices both, and has a thread receive.
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


class ReplySource(Protocol):
    """Where an answer comes from."""

    lock: threading.Lock
    """Guards what is known of each."""

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:
        """Until it has ended, or the time is up; with 0, what has already come is taken."""
        ...

    def watch(self, pending: PendingReply) -> None:
        """A caller wants to hear when it ends, and does not wait. Called with the lock held."""
        ...

    def forget(self, pending: PendingReply) -> None:
        """It was cancelled."""
        ...

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call what waited for an end, where it may wait for others in turn."""
        ...


class PendingReply:
    """What came of a question, or will. number: of the question. ended: whether it is here; then frames or an error
    are, unless it was cancelled. waiting: to be set when it is, of each thread that waits."""

    __slots__ = ("__weakref__", "callbacks", "cancelled", "ended", "error", "frames", "number", "source", "waiting")

    traceparent: str = ""

    def __init__(self, source: ReplySource, number: int) -> None:
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
            callbacks = self.settle(frames, error, cancelled)
        if callbacks:
            self.source.call(callbacks)
        return True

    def settle(
        self, frames: Sequence[Any], error: BaseException | None, cancelled: bool = False
    ) -> Sequence[Callable[[], Any]]:
        """As `end`, of what had not ended, with the lock held. Returns its callbacks, to be called without it; they are
        forgotten here, since they refer to futures that refer to this."""
        self.frames, self.error, self.cancelled = frames, error, cancelled
        self.ended = True
        for event in self.waiting:
            event.set()
        callbacks, self.callbacks = self.callbacks, []
        return callbacks

    def when_ended(self, callback: Callable[[], Any]) -> None:
        with self.source.lock:
            if not self.ended:
                self.callbacks.append(callback)
                if len(self.callbacks) == 1:
                    self.source.watch(self)
                return
        self.source.call([callback])


class Future(concurrent.futures.Future[Any]):
    """What `kaas.call` and `kaas.Client.call` give: a `concurrent.futures.Future` that can be awaited too, by any
    number of threads and event loops.

    Its value is the output's array, read-only; of several outputs a named tuple of them, in declared order. All of
    `concurrent.futures` and asyncio takes it, but for what takes coroutines only, `asyncio.create_task` say.
    """

    def __init__(self, pending: PendingReply, make: Callable[[Sequence[Any]], Any]) -> None:
        # not as its base is made: `__getattr__` does that for those that need it
        self._pending = pending
        self._make = make
        self._made: tuple[Any, BaseException | None] | None = None
        self._watched = False

    def __getattr__(self, name: str) -> Any:
        """What is inherited is made when something first looks at it. It takes several times as long as all else here,
        and most futures are only waited for by `result` and `await`."""
        if name not in _INHERITED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._pending.source.lock:
            if name not in self.__dict__:  # all at once: others may look at it already
                made = concurrent.futures.Future[Any]()
                self.__dict__.update({**vars(made), "_waiters": _Waiters(self)})
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Any:
        """The value, once it is there.

        Args:
            timeout: seconds to wait at most; the call goes on after it.

        Raises:
            KaasError: of the call, with its fields and its cause. TimeoutError: the time is up; of a deadline it is
                `DeadlineExceeded`, which is one too. concurrent.futures.CancelledError
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
        """What `result` raises for the call itself; None if there is a value.

        Raises:
            TimeoutError, concurrent.futures.CancelledError
        """
        self._wait(timeout)
        return self._outcome()[1]

    def done(self) -> bool:
        """Whether there is a value or an error, or it was cancelled."""
        pending = self._pending
        if not pending.ended:
            pending.source.wait(pending, 0)
        return pending.ended

    def running(self) -> bool:
        """False: it can be cancelled for as long as it has no answer."""
        return False

    def cancelled(self) -> bool:
        return self._pending.cancelled

    @property
    def traceparent(self) -> str:
        """The W3C traceparent of the server's span, once its answer is here, of a call with `trace`; else ""."""
        return self._pending.traceparent

    def cancel(self) -> bool:
        """Cancel the call, and return True if it is cancelled; it is not if it had ended.

        A queued request does not run; the slot of a running one is free when its kernels end.
        """
        pending = self._pending
        if pending.end(cancelled=True):
            pending.source.forget(pending)
        return pending.cancelled

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Have fn called with this future when it has ended: in the event loop, if one runs here; else in whichever
        thread notices. If it has ended, fn is called at once."""
        if self._pending.ended:
            self._settle()
            super().add_done_callback(fn)  # type: ignore[arg-type]
            return
        loop = running_loop()
        super().add_done_callback(fn if loop is None else _OnLoop(fn, loop))  # type: ignore[arg-type]
        self._watch()

    def remove_done_callback(self, fn: Callable[[Future], Any]) -> int:
        """Have fn not called, as asyncio's futures do it; returns how often it was to be."""
        unwanted = (fn, _OnLoop(fn, None))
        with self._condition:
            callbacks: list[Any] = vars(self)["_done_callbacks"]
            left = [callback for callback in callbacks if callback not in unwanted]
            removed = len(callbacks) - len(left)
            callbacks[:] = left
        return removed

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

    def _wait(self, timeout: float | None) -> None:
        """
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

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """The value or the error, of one that has ended."""
        if self._made is None:
            error = self._pending.error
            try:
                self._made = (self._make(self._pending.frames) if error is None else None), error
            except Exception as unmade:  # noqa: BLE001 - the waiting caller gets it
                self._made = None, unmade
        return self._made

    # --- what is inherited, for the functions of `concurrent.futures` and asyncio, which look at it

    def _watch(self) -> None:
        """Have it settled when the answer comes, even if no thread waits in `result`."""
        if not self._watched:
            self._watched = True
            self._pending.when_ended(self._settle)

    def _settle(self) -> None:
        """Tell all that was inherited what came of the call. Any number of threads may do so at a time; the first one
        counts."""
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
        """As of any future that another object ends: only the pool does.

        Raises:
            concurrent.futures.InvalidStateError
        """
        raise self._not_yours()

    def set_exception(self, exception: BaseException | None) -> NoReturn:  # noqa: ARG002
        """As `set_result`."""
        raise self._not_yours()

    def set_running_or_notify_cancel(self) -> NoReturn:
        """As `set_result`."""
        raise self._not_yours()

    def _not_yours(self) -> InvalidStateError:
        return InvalidStateError(f"{self!r}: the answer comes from the pool; cancel() is what a program can do")

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


_INHERITED = frozenset(vars(concurrent.futures.Future()))


class _Waiters(list[Any]):
    """What `concurrent.futures.wait` and `as_completed` register with a future; it need be watched from then on."""

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
    """A callback that was added in an event loop, and is called there, as asyncio's own futures do it."""

    fn: Callable[[Future], Any]
    loop: AbstractEventLoop | None = field(compare=False)

    def __call__(self, future: Future) -> None:
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self.fn, future)
        except RuntimeError:  # it is closed
            self.fn(future)


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs in this thread. asyncio, which takes a while to import, is not imported for it."""
    events: Any = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


def _wake(loop: AbstractEventLoop, waiter: Waiter[None]) -> None:
    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if not loop.is_closed():
        loop.call_soon_threadsafe(wake)
