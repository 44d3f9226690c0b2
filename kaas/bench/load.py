"""Load generators: one thread sends requests, and takes in their completions one at a time.

An open loop sends each request at its own time, however long earlier ones take. Its latencies count from that time and
not from the sending, or else a stalled service would delay the requests that would have measured the stall
(coordinated omission).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any

from kaas.bench.interrupt import never
from kaas.bench.windows import MOST_UNSENT
from kaas.errors import KaasError

TICK_S = 0.1
"""Longest time without a yield: the caller may want to stop while no request ends."""

GLANCE_S = 0.01
"""Longest time until an open loop takes in an end, which knows its own time: to be woken by each would cost more than
all else that the generator does."""

FAILED_IN_A_ROW, FAILED_PAUSE_S = 10, 0.01
"""After so many failures in a row, and as many as it has callers, a closed loop pauses: a service that is gone fails at
once, without end. Single failures cost its callers no time."""

Send = Callable[[int], "Future[Any]"]
"""Sends a request and returns its future. Its argument is the number of the caller in a closed loop, and of the request
in an open one, both counted from 0. Raises a KaasError for a refused request."""


Check = Callable[[int, Any], object]
"""Checks a result, after the number that its request was sent with. Raises a KaasError for a wrong one."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a request. Times are seconds of `time.perf_counter`.

    Fields:
        number: that the request was sent with. due_s: when it should be sent; in a closed loop, when it is.
        sent_s: when it was sent. ended_s: when its future ended. error: why it failed, or the result is wrong; None for
        a right result. value: the result.
    """

    number: int
    due_s: float
    sent_s: float
    ended_s: float
    error: BaseException | None = None
    value: Any = None

    @property
    def latency_s(self) -> float:
        """Seconds from the time at which the request was due to its end."""
        return self.ended_s - self.due_s


class Load:
    """Requests to one service, by one thread.

    Fields:
        sent: the number of requests. outstanding: those without an end. under_way: when each of these was due, by its
            future. sending: more requests may be sent: `drain` has not begun.
    """

    def __init__(self, send: Send, check: Check | None = None) -> None:
        """Take the function that sends a request, and one that checks its result."""
        self._send, self._check = send, check
        self._ends: SimpleQueue[Completion] = SimpleQueue()
        self._began_s = 0.0  # of an open loop
        self._arrivals: Iterator[float] = iter(())
        self._ahead = deque[float]()  # arrivals that were read, and not sent
        self.under_way: dict[Future[Any], float] = {}
        self.sent = 0
        self.outstanding = 0
        self.sending = True

    def due(self, now_s: float) -> int:
        """Return the number of requests that should be sent by now; at most MOST_UNSENT more than were sent.

        A service that takes no more requests blocks the sending.
        """
        elapsed_s = now_s - self._began_s
        while len(self._ahead) < MOST_UNSENT and (not self._ahead or self._ahead[-1] <= elapsed_s):
            if (arrival_s := next(self._arrivals, None)) is None:
                break
            self._ahead.append(arrival_s)
        return self.sent + len(self._ahead) - (1 if self._ahead and self._ahead[-1] > elapsed_s else 0)

    def unsent(self, now_s: float) -> Iterator[float]:
        """Yield when each request was due that should be sent by now, and is not."""
        arrivals = chain(self._ahead, self._arrivals)
        yield from takewhile(lambda due_s: due_s <= now_s, (self._began_s + each for each in arrivals))

    def closed(self, outstanding: int) -> Iterator[Completion | None]:
        """Be so many callers, each with one request outstanding. Yield each end, and None when none comes.

        The loop has no end of its own: the caller stops to iterate, and calls `drain`.
        """
        for caller in range(outstanding):
            self._request(caller, perf_counter())
        in_a_row = 0
        while True:
            completed = self._end(TICK_S)
            if completed is not None:
                in_a_row = in_a_row + 1 if completed.error is not None else 0
                if in_a_row >= max(FAILED_IN_A_ROW, outstanding):
                    sleep(FAILED_PAUSE_S)
                self._request(completed.number, perf_counter())
            yield completed

    def opened(self, arrivals: Iterator[float]) -> Iterator[Completion | None]:
        """Send a request at each arrival, in seconds from now. Yield each end, and None when none comes.

        The loop ends with the last arrival; `drain` yields what is outstanding then.
        """
        self._arrivals = arrivals
        began_s = self._began_s = perf_counter()
        for number, arrival_s in enumerate(self._read()):
            due_s = began_s + arrival_s
            while (left_s := due_s - perf_counter()) > 0:
                if self._ends.empty():
                    sleep(min(left_s, GLANCE_S))
                yield self._end(0)
            self._request(number, due_s)
            yield self._end(0)  # also if the loop is late, so that its caller can stop it

    def _read(self) -> Iterator[float]:
        """Yield the arrivals that `due` has read, and the others."""
        while True:
            if self._ahead:
                yield self._ahead.popleft()
            elif (arrival_s := next(self._arrivals, None)) is not None:
                yield arrival_s
            else:
                return

    def drain(self, timeout_s: float, stop: Callable[[], bool] = never) -> Iterator[Completion]:
        """Yield the ends of outstanding requests, for timeout_s seconds at most, or until `stop` returns True."""
        self.sending = False
        until_s = perf_counter() + timeout_s
        while self.outstanding and (left_s := until_s - perf_counter()) > 0 and not stop():
            completed = self._end(min(left_s, TICK_S))
            if completed is not None:
                yield completed

    def cancel(self) -> None:
        """Cancel the outstanding requests. Each still has its end, which `drain` yields."""
        for future in tuple(self.under_way):
            future.cancel()

    def _request(self, number: int, due_s: float) -> None:
        sent_s = perf_counter()
        self.sent += 1
        self.outstanding += 1
        try:
            future = self._send(number)
        except KaasError as error:  # a refusal is an end like others
            self._ends.put(Completion(number, due_s, sent_s, perf_counter(), error))
        except BaseException:  # Ctrl-C: the request was not sent, and has no end
            self.sent -= 1
            self.outstanding -= 1
            raise
        else:
            self.under_way[future] = due_s
            future.add_done_callback(partial(self._ended, number, due_s, sent_s))

    def _ended(self, number: int, due_s: float, sent_s: float, future: Future[Any]) -> None:
        ended_s = perf_counter()
        self.under_way.pop(future, None)
        value = error = None
        try:
            value = future.result()
            if self._check is not None:
                self._check(number, value)
        except (Exception, CancelledError) as failed:  # noqa: BLE001 - the completion has it
            error = failed
        self._ends.put(Completion(number, due_s, sent_s, ended_s, error, value))

    def _end(self, timeout_s: float) -> Completion | None:
        try:
            completed = self._ends.get(timeout=timeout_s)
        except Empty:
            return None
        self.outstanding -= 1
        return completed
