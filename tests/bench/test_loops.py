"""The loops of a command line: callers, rates, ranges of rates, and traces with gaps."""

from __future__ import annotations

import math
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from kaas.bench.load import Load
from kaas.bench.loops import Arrivals, loops
from kaas.errors import InvalidRequest


def titles(concurrency: str | None = None, rate: str | None = None) -> list[str]:
    return [loop.title for loop in loops(concurrency, rate, None, Arrivals.POISSON)]


def test_one_caller_is_the_default_and_closed_loops_come_first() -> None:
    assert titles() == ["concurrency 1"]
    assert titles("1,4", "100") == ["concurrency 1", "concurrency 4", "rate 100/s"]


def test_a_range_doubles_or_has_a_step_and_ends_with_its_end() -> None:
    assert titles(rate="10:70") == ["rate 10/s", "rate 20/s", "rate 40/s", "rate 70/s"]
    assert titles(rate="10:30:10") == ["rate 10/s", "rate 20/s", "rate 30/s"]
    assert titles(rate="5,10:20") == ["rate 5/s", "rate 10/s", "rate 20/s"]
    assert [loop.rising for loop in loops(None, "5,10:20", None, Arrivals.POISSON)] == [False, True, True]


def test_a_title_has_all_digits_of_its_rate_and_none_of_a_sums_error() -> None:
    assert titles(rate="100.0001,100.0002,1e8") == ["rate 100.0001/s", "rate 100.0002/s", "rate 100000000/s"]
    assert titles(rate="0.1:0.4:0.1") == ["rate 0.1/s", "rate 0.2/s", "rate 0.3/s", "rate 0.4/s"]
    assert [loop.rate_per_s for loop in loops("2", "100.0001", None, Arrivals.POISSON)] == [None, 100.0001]


@pytest.mark.parametrize("rate", ["20:10", "10:", "10:20:5:1", "a", "0", "-1", "", "1e400", "1e8:2e8:1e-9", "1:1e6:1"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(InvalidRequest, match="--rate takes"):
        titles(rate=rate)


def test_a_range_that_falls_is_told_to_rise() -> None:
    with pytest.raises(
        InvalidRequest, match="--rate takes a range that rises, as 10:1000, or 10:1000:90 with a step, not '400:50'"
    ):
        titles(rate="400:50")


def test_a_trace_keeps_its_gaps(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("100.0,resnet\n100.25,bert\n\n160.0\n")
    (loop,) = loops(None, None, file, Arrivals.POISSON)
    assert (loop.title, loop.opened) == ("trace trace.csv", True)


def test_a_trace_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("0.1\n0.2\n", encoding="utf-8-sig")
    (loop,) = loops(None, None, file, Arrivals.POISSON)
    assert loop.opened


def test_a_trace_is_read_to_the_limit_only(tmp_path: Path) -> None:
    """The rest may be larger than the memory."""
    file = tmp_path / "trace.csv"
    file.write_text("100\n100.5,x\n\n101.25\nnoon\n")
    (loop,) = loops(None, None, file, Arrivals.POISSON, limit_s=1.0)
    load = Load(lambda _: Future())
    next(loop.begin(load))
    # the first one after the limit shows that the trace has not come to its end
    half, late = load.unsent(math.inf)
    assert late - half == pytest.approx(0.75)
    with pytest.raises(InvalidRequest, match="not 'noon'"):
        loops(None, None, file, Arrivals.POISSON, limit_s=2.0)


def test_a_trace_has_requests_within_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaas.bench.loops.MOST_ARRIVALS", 2)
    (tmp_path / "t.csv").write_text("0\n" * 3)
    with pytest.raises(InvalidRequest, match="a trace has 2 requests within --limit at most"):
        loops(None, None, tmp_path / "t.csv", Arrivals.POISSON)


def test_a_traces_name_commands_no_terminal(tmp_path: Path) -> None:
    file = tmp_path / "t\x1b[31m\udcff.csv"
    file.write_text("0\n")
    (loop,) = loops(None, None, file, Arrivals.POISSON)
    assert loop.title == "trace t\ufffd[31m\ufffd.csv"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace.csv: the trace has no requests"),
        ("0\n1_0\n", "trace.csv:2: a line begins with seconds, not '1_0'"),
        ("0\n" + "1" * (1 << 20), "trace.csv:2: a line has more than 1,048,576 letters"),
        ("2\n\n1\n", "trace.csv:3: a trace is in the order of time: 1 s comes after 2 s"),
        ("0\nnoon,x\n", "trace.csv:2: .* not 'noon'"),
        ("0\ninf\n", "trace.csv:2: .* not 'inf'"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        loops(None, None, file, Arrivals.POISSON)


def test_a_closed_loop_has_callers_within_reason() -> None:
    with pytest.raises(InvalidRequest, match="10000 at most"):
        titles("999999999")


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_requests_at_a_rate_wait_as_queueing_theory_says(load: float) -> None:
    """One server, a second for each request: the mean latency is 1 + load / (2 - 2 load) seconds (Pollaczek-Khinchine).

    Arrivals that are more even than chance give shorter queues, above all where the server is almost busy.
    """
    end_s, latencies = 0.0, list[float]()
    for due_s in islice(Arrivals.POISSON.at(load, seed=1), 300_000):
        end_s = max(end_s, due_s) + 1
        latencies.append(end_s - due_s)
    assert mean(latencies) == pytest.approx(1 + load / (2 - 2 * load), rel=0.08)


def test_a_trace_whose_last_replies_do_not_come_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0\n0\n")
    (loop,) = loops(None, None, tmp_path / "t.csv", Arrivals.POISSON)
    futures: list[Future[Any]] = []

    def send(_: int) -> Future[Any]:
        futures.append(Future())
        return futures[-1]

    completions = loop.begin(Load(send))
    while len(futures) < 2:
        assert next(completions) is None
    assert [next(completions) for _ in range(3)] == [None] * 3
