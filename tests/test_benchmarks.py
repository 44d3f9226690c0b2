"""The page of benchmarks says what they measured: it is made of their results, and has a line for every bar."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks import page, papers, taps
from benchmarks.__main__ import names
from kaas.wire import messages

RESULT = {
    "measured": "2026-01-02",
    "commit": "0123abc",
    "processor": "Abacus 9",
    "processors": 2,
    "load_average": 0.5,
    "benchmark": "launch",
    "bars": {"replay": [1.25, "<=", 1.5], "rate": [0.5, ">=", 0.9], "latency": ["unstable", "<=", 2]},
    "detail": {"replay_us": 3.0},
}


def test_the_page_is_made_of_the_results() -> None:
    assert page.PAGE.read_text() == page.current()
    assert page.SECURITY.read_text() == page.security()


def test_the_page_of_the_scheduling_papers_is_made_of_the_results() -> None:
    assert papers.PAGE.read_text() == papers.current()


def test_steps_of_a_call_are_named_by_messages_that_there_are() -> None:
    """`benchmarks.path` times the steps of a call by the names of the messages that are sent and received."""
    words = {step.split()[-1] for steps in taps.STEPS.values() for step in steps}
    assert {word for word in words if word[0].isupper()} <= vars(messages).keys()


def test_every_benchmark_has_a_place_on_the_page() -> None:
    headings = re.findall(r"^## (\w+)$", page.PAGE.read_text(), re.MULTILINE)
    assert {*names()} <= {*headings}
    assert {*headings} <= {*names(), *names("gpu_")}


def test_every_bar_is_explained() -> None:
    meanings = tomllib.loads(page.MEANINGS.read_text())
    unexplained = [
        f"{name}.{bar}"
        for name, result in page.kept().items()
        for bar in result["bars"]
        if not meanings.get(name.removeprefix("gpu-"), {}).keys() & {bar, "*"}
    ]
    assert not unexplained


def test_a_row_has_the_meaning_the_limit_and_the_measurement() -> None:
    made = page.page({"launch": RESULT}, {"launch": {"replay": "a replay"}, "chaos": {"wrong": "wrong answers"}})
    assert "2026-01-02, commit `0123abc`, Abacus 9, 2 processors, load average 0.5." in made
    assert "| a replay | ≤ 1.5 | 1.25 |  |" in made
    assert "| (rate) | ≥ 0.9 | 0.5 | missed |" in made
    assert "| (latency) | ≤ 2 | unstable | missed |" in made
    assert f"`chaos` is {page.NOT_MEASURED}." in made
    assert "| wrong answers |" in made


def test_a_result_on_a_gpu_names_the_gpu() -> None:
    made = page.page({"gpu-launch": {**RESULT, "device": "Abacus GPU"}}, {"launch": {"replay": "a replay"}})
    assert "Abacus GPU, Abacus 9, 2 processors" in made
    assert "| a replay | ≤ 1.5 | 1.25 |  |" in made


def test_stages_stand_in_their_order_with_the_sum_last() -> None:
    detail = {"a: first, us": 1.25, "a: in all, us": 3.0, "b: first, us": 2.0, "b: second, us": 4.0, "p50_us": 9.0}
    rows = page.page({"launch": {**RESULT, "detail": detail}}, {}).splitlines()
    assert [row for row in rows if row.startswith(("| first", "| second", "| in all"))] == [
        "| first | 1.2 | 2.0 |",
        "| second |  | 4.0 |",
        "| in all | 3.0 |  |",
    ]


@pytest.mark.processes
def test_a_result_replaces_the_last_one_and_names_its_machine(tmp_path: Path) -> None:
    for replay in (1.0, 2.0):
        given = {"benchmark": "launch", "bars": {"replay": [replay, "<=", 1.5]}, "detail": {}}
        page.keep(given, page.machine(), tmp_path)
    ((name, result),) = page.kept(tmp_path).items()
    assert name == "launch"
    assert result["bars"] == {"replay": [2.0, "<=", 1.5]}
    assert result["processors"] > 0
    assert {"measured", "commit", "processor", "load_average"} <= result.keys()
