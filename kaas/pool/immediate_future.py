"""A future that calls its callbacks at once, and not in a later turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_PENDING, _SET, _FAILED, _CANCELLED = range(4)


class ImmediateFuture(msgspec.Struct, Generic[T], eq=False):
    """A future of one event loop. A cancelled wait cancels the future.

    A turn of asyncio's loop takes as long as a pool's work for a message. With asyncio's futures, a request would take
    five turns.
    """

    _state: int = _PENDING
    _value: Any = None
    _callbacks: tuple[Callable[[ImmediateFuture[T]], object], ...] = ()

    @classmethod
    def of(cls, task: asyncio.Future[T]) -> ImmediateFuture[T]:
        """Return a future with the result of a task or future. It ends one turn after the task."""
        answer = cls()
        task.add_done_callback(answer._take)
        return answer

    def _take(self, task: asyncio.Future[T]) -> None:
        if task.cancelled():
            self.cancel()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def done(self) -> bool:
        """Return True if the future has a result or an error, or was cancelled."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Return True if the future was cancelled."""
        return self._state == _CANCELLED

    def result(self) -> T:
        """Return the value.

        Raises:
            asyncio.CancelledError: the future was cancelled. asyncio.InvalidStateError: it has not ended.
            BaseException: the error of the future.
        """
        if self._state == _SET:
            value: T = self._value
            return value
        error = self.exception()
        assert error is not None, "it has no value"
        raise error

    def exception(self) -> BaseException | None:
        """Return the error of the future, or None if it has a value.

        Raises:
            asyncio.CancelledError: the future was cancelled. asyncio.InvalidStateError: it has not ended.
        """
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        if self._state == _PENDING:
            raise asyncio.InvalidStateError("the future has no result yet")
        return self._value if self._state == _FAILED else None

    def set_result(self, value: T) -> None:
        """End the future with a value."""
        self._end(_SET, value)

    def set_exception(self, error: BaseException) -> None:
        """End the future with an error."""
        self._end(_FAILED, error)

    def cancel(self) -> bool:
        """Cancel the future. Return True if it had not ended before."""
        if self._state != _PENDING:
            return False
        self._end(_CANCELLED, None)
        return True

    def add_done_callback(self, callback: Callable[[ImmediateFuture[T]], object]) -> None:
        """Call a callback with the future: at once if the future is done, else in the call that ends it."""
        if self._state == _PENDING:
            self._callbacks += (callback,)
        else:
            callback(self)

    def _end(self, state: int, value: Any) -> None:
        if self._state != _PENDING:
            raise asyncio.InvalidStateError("the future has ended already")
        self._state, self._value = state, value
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks += (partial(_wake, waiter),)
            try:
                yield from waiter.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)
