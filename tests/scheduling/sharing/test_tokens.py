"""The multi-token scheduler: shares of time hold, SMs are never given twice, and time that is left over is used."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.tokens import OTHERS, Tokens, TokenScheduler

WINDOW_S = 0.1


@dataclass
class Flow:
    """A share with requests that always wait, each of the same length."""

    part: float
    least: float
    most: float
    run_s: float


@dataclass
class Ran:
    """The seconds that each flow held SMs in each window, and the most SMs that were held at a time."""

    by_window: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    most_sms: int = 0

    def part(self, name: str, windows: int) -> float:
        return sum(self.by_window[name].values()) / (windows * WINDOW_S)


def run(flows: Mapping[str, Flow], windows: int, *, sms: int = 16, others_s: float = 0.0, slots: int = 99) -> Ran:
    """Let saturating flows run on a device; others_s: the length of requests without a share, 0 for none."""
    tokens, ran, now_s, number = TokenScheduler(DeviceExtent(sms, 1), WINDOW_S), Ran(), 0.0, 0
    for name, flow in flows.items():
        tokens.give(name, flow.part, flow.least, flow.most)
    lengths = {name: flow.run_s for name, flow in flows.items()} | ({OTHERS: others_s} if others_s else {})
    ends: list[tuple[float, int, str, float]] = []
    end_s = windows * WINDOW_S
    while now_s < end_s:
        while len(ends) < slots and (grant := tokens.next(lengths, now_s)) is not None:
            tokens.begin(number, grant, now_s, lengths[grant.share])
            heapq.heappush(ends, (now_s + lengths[grant.share], number, grant.share, now_s))
            number += 1
        ran.most_sms = max(ran.most_sms, tokens.held_sms)
        wake_s = tokens.wakes_s(lengths, now_s)
        if ends and (wake_s is None or ends[0][0] <= wake_s):
            now_s, request, name, began_s = heapq.heappop(ends)
            tokens.end(request, now_s)
            note(ran.by_window[name], began_s, min(now_s, end_s))
        else:
            assert wake_s is not None, "nothing runs, and nothing is waited for"
            now_s = wake_s
    return ran


def note(windows: dict[int, float], from_s: float, to_s: float) -> None:
    while to_s - from_s > 1e-12:
        window = int(from_s / WINDOW_S + 1e-9)
        until_s = min(to_s, (window + 1) * WINDOW_S)
        windows[window] += until_s - from_s
        from_s = until_s


def whole(least: float, most: float = 1.0, run_s: float = 0.005) -> Flow:
    return Flow(1.0, least, most, run_s)


@pytest.mark.parametrize("parts", [(0.1, 0.9), (0.3, 0.7), (0.5, 0.5)])
@pytest.mark.parametrize("run_s", [0.001, 0.007, 0.03])
def test_two_saturating_shares_get_what_they_were_promised(parts: tuple[float, float], run_s: float) -> None:
    ran = run({"a": whole(parts[0], run_s=run_s), "b": whole(parts[1], run_s=run_s)}, 200)
    assert [ran.part(name, 200) for name in "ab"] == pytest.approx(parts, rel=0.05)


def test_a_share_has_no_more_than_its_most_though_the_device_is_idle() -> None:
    ran = run({"a": whole(0.1, 0.25, 0.007)}, 200)
    assert ran.part("a", 200) == pytest.approx(0.25, rel=0.03)


def test_time_that_is_left_over_goes_to_those_that_can_use_it() -> None:
    ran = run({"a": whole(0.3, 0.4), "b": whole(0.1)}, 100, others_s=0.005, slots=1)
    assert ran.part("a", 100) == pytest.approx(0.4, abs=0.02)
    assert sum(ran.part(name, 100) for name in ("a", "b", OTHERS)) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("others_s", [0.3, 1.0, 5.0])
def test_requests_that_are_longer_than_a_window_cost_a_share_nothing_in_the_long_run(others_s: float) -> None:
    ran = run({"a": whole(0.5, run_s=0.01)}, 1000, others_s=others_s)
    assert ran.part("a", 1000) > 0.47


def test_a_share_is_given_back_no_more_than_a_request_of_each_share_can_take() -> None:
    """While its device has no executor it gets nothing, and then no more than its least of a request and a window."""
    tokens = TokenScheduler(DeviceExtent(1), WINDOW_S)
    tokens.give("a", 1.0, 0.5, 1.0)
    tokens.begin(1, Tokens(OTHERS, 1), 0.0)
    tokens.end(1, 1.0)
    assert tokens.next({"a": 0.0}, 1.0) == Tokens("a", 1)
    assert tokens.used_s("a", 1000.0) == pytest.approx(-0.5 * (1.0 + WINDOW_S))


def test_shares_whose_sms_fit_run_beside_each_other() -> None:
    ran = run({name: Flow(0.25, 0.5, 1.0, 0.004) for name in "abcd"}, 20)
    assert [ran.part(name, 20) for name in "abcd"] == pytest.approx([1.0] * 4, rel=0.01)
    assert ran.most_sms == 16


def test_a_large_share_is_not_starved_by_small_ones() -> None:
    small = {name: Flow(0.5, 0.5, 1.0, 0.004) for name in "ab"}
    ran = run({"large": whole(0.3, run_s=0.004), **small}, 100)
    assert ran.part("large", 100) > 0.29
    assert min(ran.part(name, 100) for name in "ab") > 0.5


def test_a_small_share_runs_beside_one_that_waits_for_more_sms() -> None:
    """Of two shares of 60 % of the SMs one waits for the other; the share of 40 % need not wait for either."""
    flows = {"a": Flow(0.6, 0.5, 1.0, 0.009), "b": Flow(0.6, 0.5, 1.0, 0.009), "c": Flow(0.4, 0.9, 1.0, 0.002)}
    ran = run(flows, 50, sms=10)
    assert [ran.part(name, 50) for name in "abc"] == pytest.approx([0.5, 0.5, 1.0], abs=0.03)


def test_others_are_charged_for_a_run_of_a_share_that_is_taken_away_and_for_no_time_before() -> None:
    tokens = TokenScheduler(DeviceExtent(16, 4), WINDOW_S)
    tokens.give("a", 1.0, 0.5, 1.0)
    tokens.begin(1, Tokens("a", 16), 0.9 * WINDOW_S)
    tokens.take("a")
    tokens.end(1, 0.95 * WINDOW_S)
    assert tokens.used_s(OTHERS, 0.95 * WINDOW_S) == pytest.approx(0.05 * WINDOW_S)


def test_requests_without_a_share_go_one_by_one_where_a_least_is_promised() -> None:
    tokens = TokenScheduler(DeviceExtent(16, 4), WINDOW_S)
    tokens.give("a", 0.25, 0.5, 1.0)
    tokens.begin(1, Tokens(OTHERS, 16), 0.0, 0.01)
    assert tokens.next({OTHERS: 0.01, "a": 0.01}, 0.001) is None
    tokens.end(1, 0.01)
    assert tokens.next({OTHERS: 0.01, "a": 0.01}, 0.01) == Tokens("a", 4)
    tokens.take("a")
    tokens.begin(2, Tokens(OTHERS, 16), 0.02, 0.01)
    assert tokens.next({OTHERS: 0.01}, 0.021) == Tokens(OTHERS, 16), "no least is promised any more"


def test_requests_without_a_share_have_the_whole_device_while_no_share_runs() -> None:
    tokens = TokenScheduler(DeviceExtent(16, 4), WINDOW_S)
    tokens.give("a", 0.25, 0.0, 1.0)
    assert tokens.next({OTHERS: 0.0}, 0.0) == Tokens(OTHERS, 16)
    tokens.begin(1, Tokens(OTHERS, 16), 0.0, 0.01)
    assert tokens.next({OTHERS: 0.01}, 0.001) == Tokens(OTHERS, 16)
    assert tokens.next({"a": 0.01, OTHERS: 0.01}, 0.001) == Tokens(OTHERS, 12)
    tokens.begin(2, Tokens(OTHERS, 12), 0.001, 0.02)
    tokens.end(1, 0.01)
    assert tokens.next({"a": 0.01, OTHERS: 0.01}, 0.01) == Tokens("a", 4)


def test_a_part_is_rounded_up_to_whole_partitions() -> None:
    tokens = TokenScheduler(DeviceExtent(132, 8), WINDOW_S)
    assert [tokens.sms_of(part) for part in (0.001, 0.06, 0.12, 0.24, 0.5, 1.0)] == [8, 8, 16, 32, 72, 132]


def test_a_share_that_is_resized_runs_with_its_new_size_at_once() -> None:
    tokens = TokenScheduler(DeviceExtent(16, 1), WINDOW_S)
    tokens.give("a", 0.25, 0.5, 0.5)
    tokens.begin(1, Tokens("a", 4), 0.0)
    tokens.end(1, 0.06)
    assert tokens.next({"a": 0.0}, 0.06) is None
    assert tokens.wakes_s({"a": 0.0}, 0.06) == pytest.approx(0.1)
    tokens.give("a", 0.5, 0.5, 0.8)
    assert tokens.next({"a": 0.0}, 0.06) == Tokens("a", 8)


def test_the_requests_of_a_share_that_is_taken_away_go_on() -> None:
    tokens = TokenScheduler(DeviceExtent(16, 1), WINDOW_S)
    tokens.give("a", 0.25, 0.5, 1.0)
    tokens.begin(1, Tokens("a", 4), 0.0, 1.0)
    tokens.take("a")
    assert tokens.held_sms == 4
    tokens.end(1, 0.5)
    assert tokens.held_sms == 0


flows_of_time = st.lists(
    st.tuples(st.floats(0.02, 0.5), st.floats(0.0, 0.6), st.floats(0.0005, 0.05) | st.floats(0.05, 1.0)),
    min_size=1,
    max_size=5,
)


@given(flows_of_time, st.sampled_from([0.0, 0.004, 0.05, 2.0]))
@settings(max_examples=60, deadline=None)
def test_each_windows_use_is_within_least_and_most_but_for_one_request_of_each_share(
    asked: Sequence[tuple[float, float, float]], others_s: float
) -> None:
    """Shares of all SMs, whose leasts are at most the whole time: off by one request of each share."""
    total = max(1.0, sum(least for least, _, _ in asked))
    flows = {
        str(i): whole(least / total, min(1.0, least / total + more), run_s)
        for i, (least, more, run_s) in enumerate(asked)
    }
    windows = 100
    ran = run(flows, windows, others_s=others_s)
    all_s = others_s + sum(flow.run_s for flow in flows.values())
    for name, flow in flows.items():
        had_s = [ran.by_window[name][window] for window in range(windows)]
        for first in range(windows):  # over any number of windows
            for last in range(first + 1, windows + 1):
                sum_s, span_s = sum(had_s[first:last]), (last - first) * WINDOW_S
                assert sum_s >= flow.least * span_s - all_s - 1e-9
                assert sum_s <= flow.most * span_s + all_s + 1e-9


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0005, 0.15)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.0, 0.01]),
    st.integers(1, 20),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_sms_are_never_given_twice(
    asked: Sequence[tuple[float, float, float, float]], others_s: float, sms: int, slots: int
) -> None:
    flows = {
        str(i): Flow(part, min(low, high), max(low, high, 0.01), run_s)
        for i, (part, low, high, run_s) in enumerate(asked)
    }
    assert run(flows, 12, sms=sms, others_s=others_s, slots=slots).most_sms <= sms
