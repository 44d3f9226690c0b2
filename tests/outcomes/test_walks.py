"""The walks that docs/architecture.md draws are those that requests make."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests import walks
from tests.lanes import spread
from tests.map import CALL
from tests.walks import Step, Walk

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROW = re.compile(r"^\| (\w+) \| `(kaas/\S+)` `(\S+)` \|", re.MULTILINE)


def drawn(title: str) -> list[tuple[str, Step]]:
    """Return the rows of the table under a title: a process, and a function with its file."""
    section = PAGE.read_text().split(f"**{title}**", 1)[1].split("**From", 1)[0].split("\n## ", 1)[0]
    return [(process, Step(file, function)) for process, file, function in ROW.findall(section)]


@cache
def called(source: str) -> Walk:
    return walks.call(source)


@pytest.fixture(scope="module")
def call() -> Walk:
    return called(walks.CALLS[0])


@pytest.fixture(scope="module")
def remote() -> Walk:
    return walks.remote()


@pytest.mark.parametrize(
    ("title", "recorded"),
    [
        ("From a call to `cuGraphLaunch`", "call"),
        ("From the kernels to the `kaas.Future`", "call"),
        ("From an event to a decision", "call"),
        ("From a remote frame to its reply", "remote"),
    ],
)
def test_a_request_takes_the_walk_that_the_page_draws(
    title: str, recorded: str, request: pytest.FixtureRequest
) -> None:
    walk: Walk = request.getfixturevalue(recorded)
    rows = drawn(title)
    assert len(rows) >= 10
    for process in {process for process, _ in rows}:
        wanted = [step for place, step in rows if place == process]
        assert [step for step in walk[process] if step in wanted] == wanted


def test_a_graph_is_re_pointed_when_a_constant_lies_elsewhere() -> None:
    entered = [step.function for step in walks.call(walks.MOVED)[walks.EXECUTOR]]
    (row,) = re.findall(r"`GraphCache\.bind` \|.*", PAGE.read_text())
    named = [*re.findall(r"`(\w+\.\w+)`", row), "GraphInstance.launch"]
    assert "GraphInstance.set_parameters" in named
    assert [function for function in entered if function in named] == named


@pytest.mark.parametrize("source", spread(walks.CALLS, 1))
def test_a_call_passes_through_few_files(source: str) -> None:
    """A thread of a loaded machine may be late, and enter other files while the call is recorded: but not each time."""
    recordings = (called(source) if first else walks.call(source) for first in (True, False, False))
    assert any(len(files := walks.files_of_a_call(walk)) <= CALL for walk in recordings), files


def test_an_earlier_message_is_no_part_of_a_call(tmp_path: Path) -> None:
    lines = [
        "python -m kaas.worker.executor_process",
        "kaas/wire/connections/unix_sockets.py UnixConnection._read",
        "kaas/wire/connections/stream.py MessageStream.read",
        "kaas/wire/connections/adaptive_poll.py AdaptivePoll.wait",
        "kaas/wire/connections/unix_sockets.py UnixConnection._read",
        "kaas/wire/connections/stream.py MessageStream.read",
        "kaas/worker/executor_worker.py ExecutorWorker._run",
    ]
    (tmp_path / "1.walk").write_text("\n".join(lines))
    assert [step.function for step in walks.read(tmp_path)[walks.EXECUTOR]] == [
        "UnixConnection._read",
        "MessageStream.read",
        "ExecutorWorker._run",
    ]
