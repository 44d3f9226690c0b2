"""Events of a server as lines of its log: their fields, protection against forged lines, and their rate."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kaas.server.server_log import INTERVAL_S, LINES, LOGGERS, LogSettings, ServerLog, configure

Lines = Callable[[], list[str]]


@pytest.fixture
def log() -> Iterator[Callable[..., Lines]]:
    """Set the log up, and return a function that reads its lines."""
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in LOGGERS}

    def started(**settings: Any) -> Lines:
        stream = io.StringIO()
        configure(LogSettings(**settings), stream)
        return lambda: stream.getvalue().splitlines()

    yield started
    for handler in [each for each in root.handlers if isinstance(each, ServerLog)]:
        root.removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(capture=False)


def log_event(name: str, created_s: float, event: str, **extra: object) -> None:
    """An event at a moment of our own."""
    fields = {"name": name, "levelname": "WARNING", "levelno": logging.WARNING, "msg": event, "created": created_s}
    logging.getLogger(name).handle(logging.makeLogRecord({**fields, **extra}))


def test_events_of_the_software_gpu_are_in_the_log(log: Callable[..., Lines]) -> None:
    lines = log()
    logging.getLogger("softgpu.build").info("the software GPU's driver is built")
    assert [line.partition("INFO ")[2] for line in lines()] == ["softgpu.build: the software GPU's driver is built"]


def test_an_event_is_a_line_with_time_level_and_fields(log: Callable[..., Lines]) -> None:
    lines = log()
    log_event("kaas.test", 1_700_000_000.25, "a worker ended", worker=3, reason="killed by SIGKILL", seconds=0.125)
    assert lines() == [
        '2023-11-14T22:13:20.250Z WARNING kaas.test: a worker ended worker=3 reason="killed by SIGKILL" seconds=0.125'
    ]


def test_json_has_the_same(log: Callable[..., Lines]) -> None:
    lines = log(format="json")
    log_event("kaas.test", 1_700_000_000.25, "a worker ended", worker=3, path=io.StringIO)
    assert json.loads(lines()[0]) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "kaas.test",
        "event": "a worker ended",
        "worker": 3,
        "path": str(io.StringIO),
    }


@pytest.mark.parametrize("said_format", ["text", "json"])
def test_nothing_from_outside_forges_a_line_or_reaches_the_terminal(
    log: Callable[..., Lines], said_format: str
) -> None:
    lines = log(format=said_format)
    evil = "x\n2023-11-14T22:13:20.250Z ERROR kaas: all is lost \x1b[2J\u202e\x9b"
    log_event("kaas.test", 0.0, f"told {evil}", client=evil)
    (line,) = lines()
    assert line.isprintable()


def test_a_traceback_stands_below_its_event(log: Callable[..., Lines]) -> None:
    lines = log()
    try:
        raise LookupError("no\n2023 ERROR forged")
    except LookupError:
        logging.getLogger("kaas.test").exception("a step raised", extra={"client": "ada"})
    head, *rest = lines()
    assert head.endswith("a step raised client=ada")
    assert any("LookupError: no" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)


def test_events_that_peers_cause_are_limited_for_each_and_in_all(log: Callable[..., Lines]) -> None:
    lines = log()
    for count in range(1000):
        log_event("kaas.test", 1000.0, "a key was refused", address="10.0.0.1", limit_by="10.0.0.1", try_=count)
    assert len(lines()) == 1
    for address in range(1000):
        log_event("kaas.test", 1001.0, "a key was refused", address=address, limit_by=address)
    assert len(lines()) == LINES
    assert lines()[1].endswith("left_out=999")
    log_event("kaas.test", 1001.0, "another event", limit_by="10.0.0.1")
    assert len(lines()) == LINES + 1
    log_event("kaas.test", 1000.0 + INTERVAL_S, "a key was refused", address="10.0.0.1", limit_by="10.0.0.1")
    assert lines()[-1].endswith(f"a key was refused address=10.0.0.1 left_out={1000 - (LINES - 1)}")


def test_events_below_the_level_are_not_logged(log: Callable[..., Lines]) -> None:
    lines = log(level="warning")
    logging.getLogger("kaas.test").info("fine")
    assert lines() == []
    log(level="info")  # in the place of the former
    logging.getLogger("kaas.test").info("fine")
    assert lines() == []


def test_the_events_that_the_page_promises_are_those_of_the_code() -> None:
    """Operators search for their words: another text is a change of the page, and of what their searches find."""
    root = Path(__file__).parents[2]
    table = (root / "docs" / "observing.md").read_text().split("| event | level |", 1)[1].split("\n\n", 1)[0]
    promised = [event for row in table.splitlines() for event in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    code = "\n".join(path.read_text() for path in (root / "kaas").rglob("*.py"))
    assert len(promised) > 15
    for event in promised:
        ends = "" if event.endswith("…") else '"'
        assert f'"{event.removesuffix("…")}{ends}' in code, event
