"""A measurement of a service whose latencies and clock are the test's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import pytest

from kaas.bench.load import Completion
from kaas.bench.measure import LatencyFigures, Measurement, complete, measure
from kaas.bench.rows import figures
from kaas.bench.windows import MeasurementWindow, Stability
from kaas.errors import DeadlineExceeded


class Simulated:
    """A closed loop with one request outstanding. latency_s: of each request; None fails at once, inf is Ctrl-C."""

    def __init__(self, latencies_s: Iterator[float | None], *, late_s: float = 0.0) -> None:
        self.sent, self.outstanding, self.now_s = 1, 1, 100.0
        self._latencies_s, self._late_s = latencies_s, late_s

    def clock(self) -> float:
        return self.now_s

    def due(self, _: float) -> int:
        return self.sent

    def completions(self) -> Iterator[Completion]:
        for number, latency_s in enumerate(self._latencies_s):
            if latency_s == float("inf"):
                raise KeyboardInterrupt
            due_s = self.now_s
            self.now_s += latency_s or 0.001
            self.sent += 1
            error = None if latency_s is not None else DeadlineExceeded("late")
            yield Completion(number, due_s, due_s + self._late_s, self.now_s, error)

    def measured(self, limit_s: float = 60.0) -> tuple[Measurement, list[MeasurementWindow]]:
        told: list[MeasurementWindow] = []
        loop = self.completions()
        found = measure(
            self, loop, open_loop=False, window_s=1.0, limit_s=limit_s, progress=told.append, clock=self.clock
        )
        return found, told


def forever(*latencies_s: float | None) -> Iterator[float | None]:
    while True:
        yield from latencies_s


def test_a_steady_service_is_measured_in_three_windows() -> None:
    found, told = Simulated(forever(0.01, 0.03), late_s=0.002).measured()
    assert found.stability is Stability.STABLE
    assert found.rate_per_s == pytest.approx(50, rel=0.02)
    assert found.latencies.mean == pytest.approx(0.02, rel=0.02)
    assert found.latencies.sd == pytest.approx(0.01, rel=0.02)
    assert found.latencies.percentiles["p99"] == pytest.approx(0.03)
    assert found.late_s == pytest.approx(0.002)
    assert told == list(found.windows)
    assert len(told) == 3


def test_the_figures_leave_out_windows_before_the_steady_ones() -> None:
    def warming() -> Iterator[float]:
        yield from [0.5] * 4
        yield from [0.01] * 10_000

    found, _ = Simulated(warming()).measured()
    assert found.stability is Stability.STABLE
    assert found.latencies.percentiles["p99.9"] == pytest.approx(0.01)


def test_a_service_that_never_settles_is_told_so_at_the_limit() -> None:
    def slower() -> Iterator[float]:
        latency_s = 0.01
        while True:
            yield latency_s
            latency_s *= 1.01

    found, told = Simulated(slower()).measured(limit_s=9.0)
    assert found.stability is Stability.UNSETTLED
    assert len(told) >= 7
    assert found.rate_per_s is not None


def test_failed_requests_are_counted_by_their_error_and_have_no_latency() -> None:
    found, _ = Simulated(forever(*[0.02] * 19, None)).measured()
    assert found.stability is Stability.STABLE
    assert found.latencies.percentiles["p50"] == pytest.approx(0.02)
    assert found.errors.keys() == {"DeadlineExceeded"}
    assert found.errors["DeadlineExceeded"] == pytest.approx(found.latencies.count / 19, abs=1)


def test_a_service_of_which_half_the_requests_fail_is_not_stable() -> None:
    found, _ = Simulated(forever(0.02, None)).measured(limit_s=5.0)
    assert found.stability is Stability.UNSETTLED


def test_ctrl_c_gives_what_there_is() -> None:
    found, _ = Simulated(iter([0.1, 0.1, 0.1, float("inf")])).measured()
    assert found.interrupted
    assert found.latencies.count == 3
    assert found.rate_per_s == pytest.approx(10)


def test_a_growing_queue_has_no_rate() -> None:
    load = Simulated(forever(0.01))

    def growing() -> Iterator[Completion]:
        for completed in load.completions():
            load.sent += 1
            load.outstanding += 1
            yield replace(completed, due_s=completed.ended_s - (completed.ended_s - 100.0) / 2)

    found = measure(load, growing(), open_loop=True, window_s=1.0, limit_s=60.0, clock=load.clock)
    assert found.stability is Stability.UNSTABLE
    assert found.rate_per_s is None


def test_percentiles_are_latencies_that_requests_had() -> None:
    figures = LatencyFigures.of([0.1] * 989 + [1.0] * 10 + [9.0])
    assert list(figures.percentiles.values()) == [0.1, 0.1, 0.1, 1.0, 1.0]
    assert LatencyFigures.of([]).count == 0


def test_the_last_result_of_a_service_that_dies_has_its_time() -> None:
    def dies() -> Iterator[float | None]:
        yield from [0.25] * 6
        while True:
            yield None

    found, _ = Simulated(dies()).measured(limit_s=5.0)
    assert found.last_result_s == pytest.approx(1.5)
    assert found.errors["DeadlineExceeded"] > 0


class Sent:
    """The rest of a load of which all requests were sent."""

    def unsent(self, _: float) -> Iterator[float]:
        return iter(())


def test_requests_of_a_trace_that_were_not_sent_in_time_are_lost() -> None:
    class Rest:
        under_way: ClassVar[dict[object, float]] = {}

        def drain(self, *_: Any) -> Iterator[Completion]:
            return iter(())

        def unsent(self, now_s: float) -> Iterator[float]:
            return iter([now_s - 2.0] * 7)

    found, _ = Simulated(forever(0.03)).measured()
    trace = complete(replace(found, whole=True), Rest(), 1.0)
    assert trace.lost == 7
    assert len(trace.latencies_s) == len(found.latencies_s) + 7
    assert complete(found, Rest(), 1.0).lost == 0  # of a rate, whose end is the measurement's


def test_a_service_that_has_no_result_for_a_load_is_silent() -> None:
    class Rest(Sent):
        under_way: ClassVar = {object(): perf_counter() - 10}

        def drain(self, *_: Any) -> Iterator[Completion]:
            return iter(())

    found, _ = Simulated(forever(0.03)).measured()
    nothing = replace(found, last_result_s=0.0, slowest_s=0.0, latencies_s=())
    assert complete(nothing, Rest(), 1.0).stability is Stability.SILENT


def test_requests_that_end_after_the_windows_count() -> None:
    """A request of a hundred gets its result after three seconds; nothing else would show it."""

    class Rest(Sent):
        under_way: ClassVar = {object(): 102.0, object(): 90.0}

        def drain(self, *_: Any) -> Iterator[Completion]:
            yield Completion(0, 101.0, 101.0, 104.0)
            yield Completion(1, 101.5, 101.5, 104.0, DeadlineExceeded("late"))
            yield Completion(2, 99.0, 99.0, 104.0)  # due before the windows

    found, _ = Simulated(forever(0.03)).measured()
    whole = complete(found, Rest(), 1.0)
    assert (whole.lost, whole.errors) == (2, {"DeadlineExceeded": 1})
    assert whole.unanswered == 2  # the failed one, and the lost one of these windows: the other came before
    assert found.rate_per_s is not None
    span_s = sum(window.seconds for window in found.windows[-found.counted :])
    assert whole.rate_per_s == pytest.approx(found.rate_per_s - (2 / span_s if whole.open_loop else 0))
    # the server's figures are of these requests, too: their mean latency is the sum of its stages
    assert whole.mean_s * whole.results == pytest.approx(found.mean_s * found.results + 3.0 + 5.0)
    assert whole.results == found.results + 2
    assert whole.slowest_s == pytest.approx(max(5.0, perf_counter() - 90.0), abs=60)
    assert len(whole.latencies_s) == len(found.latencies_s) + 2  # a failed one has no latency, as in the windows
    assert sorted(whole.latencies_s)[-2 if whole.slowest_s > 3 else -1] == pytest.approx(3.0)


def test_ctrl_c_while_the_last_requests_end_keeps_the_figures() -> None:
    class Rest(Sent):
        under_way: ClassVar = {object(): 102.0}

        def drain(self, *_: Any) -> Iterator[Completion]:
            yield Completion(0, 101.0, 101.0, 104.0)
            raise KeyboardInterrupt

    found, _ = Simulated(forever(0.03)).measured()
    whole = complete(found, Rest(), 30.0)
    assert (whole.interrupted, whole.lost, whole.waiting) == (True, 0, 1)  # what is under way then is not lost
    assert len(whole.latencies_s) == len(found.latencies_s) + 1


def begun_before(seconds: float) -> Measurement:
    """Return a measurement of three seconds that began so long before now."""
    found, _ = Simulated(forever(0.03)).measured()
    began_s = perf_counter() - seconds
    return replace(found, began_s=began_s, span_s=(began_s, began_s + 3))


def test_a_request_that_is_lost_while_later_ones_have_results_costs_no_figures() -> None:
    """A fast service has nothing else under way at the end, so that no result comes in the drain."""

    class Rest(Sent):
        under_way: ClassVar = {object(): perf_counter() - 19}

        def drain(self, *_: Any) -> Iterator[Completion]:
            yield from ()

    found = begun_before(20)
    whole = complete(found, Rest(), 1.0)
    assert (whole.stability, whole.lost) == (found.stability, 1)
    assert whole.slowest_s > 18
    assert len(whole.latencies_s) == len(found.latencies_s) + 1
    assert whole.rate_per_s == found.rate_per_s


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_service_that_gives_no_more_results_has_no_figures(interrupted: bool) -> None:
    """Those of the time before its end would look like those of a service that lives."""

    class Rest(Sent):
        under_way: ClassVar = {object(): perf_counter() - 10}

        def drain(self, *_: Any) -> Iterator[Completion]:
            yield from ()

    found = begun_before(20)
    whole = complete(replace(found, interrupted=interrupted), Rest(), 1.0)
    assert (whole.stability, whole.rate_per_s) == (Stability.SILENT, None)
    busy = complete(replace(found, slowest_s=9.0), Rest(), 1.0)  # others have waited as long before
    assert busy.stability is found.stability


def test_a_queue_of_most_requests_has_no_figures_though_it_does_not_grow_for_sure() -> None:
    window = MeasurementWindow(1.0, due=200, answered=50, latency_s=0.5, queued=150)
    windows = [replace(window, queued=150 * (number + 1)) for number in range(3)]
    found, _ = Simulated(forever(0.03)).measured()
    waits = replace(found, stability=Stability.UNSETTLED, windows=tuple(windows), open_loop=True)
    assert waits.rate_per_s is None
    assert replace(waits, open_loop=False).rate_per_s == pytest.approx(50)


def test_a_trace_goes_on_to_its_end_though_its_windows_agree() -> None:
    load = Simulated(iter([0.01] * 900))
    found = measure(load, load.completions(), open_loop=False, window_s=1.0, limit_s=60.0, whole=True, clock=load.clock)
    assert found.stability is Stability.STABLE
    assert len(found.windows) >= 8


def test_a_measurement_ends_when_it_is_asked_to() -> None:
    load = Simulated(forever(0.01))
    found = measure(
        load,
        load.completions(),
        open_loop=False,
        window_s=1.0,
        limit_s=60.0,
        stop=lambda: load.now_s > 101.5,
        clock=load.clock,
    )
    assert found.interrupted
    assert len(found.windows) == 1
    assert found.latencies.count == pytest.approx(100, abs=2)


def test_a_trace_has_come_to_its_end_or_was_cut_off() -> None:
    states = []
    for limit_s in (60.0, 2.5):
        load = Simulated(iter([0.01, 0.05, 0.2] * 40))
        found = measure(
            load, load.completions(), open_loop=True, window_s=1.0, limit_s=limit_s, whole=True, clock=load.clock
        )
        states.append((found.ended, figures(found, None)["state"]))
    assert states == [(True, "whole"), (False, "cut off")]
    assert figures(replace(found, interrupted=True), None)["state"] == "interrupted"
    assert figures(replace(found, interrupted=True, stability=Stability.SILENT), None)["state"] == "silent"


def test_the_first_results_are_a_ramp_that_counts_for_nothing() -> None:
    """A pipeline gives its first result after 1.8 s, and then one every 0.1 s."""
    load = Simulated(iter([1.8, *[0.1] * 200]))
    found = measure(load, load.completions(), open_loop=False, window_s=1.0, limit_s=4.0, ramp=1, clock=load.clock)
    assert found.stability is Stability.UNSETTLED
    assert found.results / found.last_result_s == pytest.approx(10.0)
    assert max(found.latencies_s) == pytest.approx(0.1)
    assert found.began_s == pytest.approx(101.8)


def test_enough_results_end_a_measurement_whose_windows_do_not_agree() -> None:
    """Each request starts a process, which takes long on a slow machine: then so does the measurement."""
    load = Simulated(iter([1.5] * 20))
    measured = partial(measure, open_loop=False, window_s=4.0, limit_s=60.0, ramp=1, enough=6)
    found = measured(load, load.completions(), clock=load.clock)
    assert found.results == len(found.latencies_s) == 6
    assert found.last_result_s == pytest.approx(9.0) == sum(each.seconds for each in found.windows)


class Blocked:
    """A load whose service takes no more: ten requests were due, and four were sent."""

    sent = outstanding = 4

    def due(self, now_s: float) -> int:  # noqa: ARG002
        return 10


@pytest.mark.parametrize(("open_loop", "unsent"), [(True, 6), (False, 0)])
def test_requests_that_were_due_and_could_not_be_sent_are_counted(open_loop: bool, unsent: int) -> None:
    found = measure(Blocked(), iter([None, None]), open_loop=open_loop, window_s=1.0, limit_s=0.0)
    assert found.unsent == unsent
