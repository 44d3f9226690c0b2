"""A future whose callbacks are called at once, and not in a later turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_PENDING, _SET, _FAILED, _CANCELLED = range(4)


class ImmediateFuture(msgspec.Struct, Generic[T], eq=False):
    """A future of one event loop. A wait for it that is cancelled cancels it.

    A turn of asyncio's loop costs as much as what a pool does for a message, and a request would take five.
    """

    _state: int = _PENDING
    _value: Any = None
    _callbacks: tuple[Callable[[ImmediateFuture[T]], object], ...] = ()

    @classmethod
    def of(cls, task: asyncio.Future[T]) -> ImmediateFuture[T]:
        """Return the future of a task or future; it ends in a turn of its own."""
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
        return self._state != _PENDING

    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    def result(self) -> T:
        """Return the value.

        Raises:
            asyncio.CancelledError, asyncio.InvalidStateError, or the error it ended with.
        """
        if self._state == _SET:
            value: T = self._value
            return value
        error = self.exception()
        assert error is not None, "it has no value"
        raise error

    def exception(self) -> BaseException | None:
        """Return the error it ended with, or None.

        Raises:
            asyncio.CancelledError, asyncio.InvalidStateError
        """
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        if self._state == _PENDING:
            raise asyncio.InvalidStateError("there is no answer yet")
        return self._value if self._state == _FAILED else None

    def set_result(self, value: T) -> None:
        self._end(_SET, value)

    def set_exception(self, error: BaseException) -> None:
        self._end(_FAILED, error)

    def cancel(self) -> bool:
        """Cancel it. Return True if it had not ended."""
        if self._state != _PENDING:
            return False
        self._end(_CANCELLED, None)
        return True

    def add_done_callback(self, callback: Callable[[ImmediateFuture[T]], object]) -> None:
        """Call this with the future once it is done: at once if it is, else in the call that ends it."""
        if self._state == _PENDING:
            self._callbacks += (callback,)
        else:
            callback(self)

    def _end(self, state: int, value: Any) -> None:
        if self._state != _PENDING:
            raise asyncio.InvalidStateError("there is an answer already")
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
