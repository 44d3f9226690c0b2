"""The first Ctrl-C asks a measurement to end; a second one ends the program."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from kaas.bench.interrupt import interruptible
from kaas.bench.rows import drain_words, rows
from kaas.bench.service import LoadedService


def test_the_first_ctrl_c_is_noted_and_the_second_is_raised() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible() as interrupt:
            assert not interrupt()
            signal.raise_signal(signal.SIGINT)
            assert interrupt()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_that_ignores_ctrl_c_goes_on() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_no_signals() -> None:
    asked: list[bool] = []

    def measure() -> None:
        with interruptible() as interrupt:
            asked.append(interrupt())

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    assert asked == [False]


def test_ctrl_c_ends_a_measurement_whose_first_request_has_no_result() -> None:
    class Silent:
        def call(self) -> Future[Any]:
            signal.raise_signal(signal.SIGINT)
            return Future()

    service = LoadedService({"": Silent()}, list, devices=(), weights={}, inputs=())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible() as interrupt, pytest.raises(KeyboardInterrupt):
            list(rows(service, {}, (), 1.0, 1.0, interrupt))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("outstanding", "rate_per_s", "words"),
    [
        (0, 0.0, ""),
        (100, 100.0, ""),
        (1000, 100.0, "waiting about 10 s for 1,000 requests that are under way; Ctrl-C ends the wait"),
        (100_000, 100.0, "waiting about 30 s for 100,000 requests that are under way; Ctrl-C ends the wait"),
        (1, 0.0, "waiting about 30 s for 1 request that is under way; Ctrl-C ends the wait"),
    ],
)
def test_a_long_wait_for_the_rest_is_announced(outstanding: int, rate_per_s: float, words: str) -> None:
    assert drain_words(outstanding, rate_per_s) == words
