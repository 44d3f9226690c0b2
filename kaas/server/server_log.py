"""A server's log: Python's `logging`, set up so that each event is one line with its time, level and fields.

Code of any module logs by `logging.getLogger(__name__)` and gives fields as `extra={"client": "ada"}`. An event that
clients or unauthenticated peers can cause at any rate also names its bound: `extra={"limit_by": address}`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import IO, Any, Literal

import msgspec

INTERVAL_S = 10.0
"""One event with one value of `limit_by` makes at most one line in this time."""
LINES = 64
"""The lines that one event makes at most in `INTERVAL_S`, over all values of `limit_by`."""
TRACEBACK = "traceback"
"""The field that may have several lines. In text they are indented below the event, unlike any event."""

LOGGERS = ("kaas", "softgpu")
"""The packages whose events are logged from `LogSettings.level` on; of others warnings are."""
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "limit_by"}


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `log` of a server's configuration.

    Fields:
        format: text, or one JSON object per line. level: the lowest level that is logged of KaaS's events.
        slow_request_s: requests that take longer, from their arrival to their answer, are logged; None: none are.
    """

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    slow_request_s: float | None = 10.0


def configure(settings: LogSettings, stream: IO[str] | None = None) -> None:
    """Log to a stream, or else to standard error. It replaces the handler of an earlier call."""
    handler = ServerLog(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines() if settings.format == "json" else Text())
    handler.addFilter(Repeats())
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each, ServerLog)]:
        root.removeHandler(former)
    root.addHandler(handler)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(settings.level.upper())
    logging.captureWarnings(capture=True)


class ServerLog(logging.StreamHandler[IO[str]]):
    """The handler that `configure` sets up."""


class Repeats(logging.Filter):
    """Passes one record of an event for each `limit_by` and interval. The next record that passes counts in `left_out`
    the records of this event that did not pass since the last."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._interval = 0
        self._passed: set[tuple[Hashable, Hashable]] = set()
        self._lines = Counter[Hashable]()
        self._left_out = Counter[Hashable]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record passes."""
        by = getattr(record, "limit_by", None)
        if by is None:
            return True
        event = (record.name, record.msg)
        with self._lock:
            interval = int(record.created // INTERVAL_S)
            if interval != self._interval:
                self._interval = interval
                self._passed.clear()
                self._lines.clear()
            if (event, by) in self._passed or self._lines[event] >= LINES:
                self._left_out[event] += 1
                return False
            self._passed.add((event, by))
            self._lines[event] += 1
            left_out = self._left_out.pop(event, 0)
        if left_out:
            record.left_out = left_out
        return True


class Text(logging.Formatter):
    """`TIME LEVEL LOGGER: EVENT field=value …`. Text from outside can neither begin a line nor hold a
    terminal's commands."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        fields = fields_of(record)
        lines = str(fields.pop(TRACEBACK, "")).splitlines()
        shown = [f"{name}={_shown(value)}" for name, value in fields.items()]
        head = f"{_time(record)} {record.levelname} {record.name}: {printable(record.getMessage())}"
        return "\n".join([" ".join([head, *shown]), *(f"    {printable(line)}" for line in lines)])


class JsonLines(logging.Formatter):
    """An object with `time`, `level`, `logger`, `event`, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        base = {"time": _time(record), "level": record.levelname, "logger": record.name, "event": record.getMessage()}
        return json.dumps({**fields_of(record), **base}, default=str)  # in ASCII: text from outside is escaped


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of `extra`, and the traceback if there is one. Names with an underscore are left out: Ray adds
    some to each record of its processes."""
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"}
    if record.exc_info:
        fields[TRACEBACK] = "".join(traceback.format_exception(*record.exc_info))
    return fields


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and text and not set(text) & set(" \"'=")
    return text if plain else '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def printable(text: str) -> str:
    """Return a text with unprintable characters escaped, as Python writes them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
