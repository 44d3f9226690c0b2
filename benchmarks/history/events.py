"""The history: what programs, the server and the nemesis did, an event a line.

Each process appends to a file of its own, by one system call a line, so that a killed one leaves whole lines. Times
are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

import msgspec

from benchmarks.history.operations import Operation


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="is", kw_only=True):
    """An event. at_s: on the monotonic clock."""

    at_s: float


class Invoked(Event, frozen=True, tag="invoked"):
    """An attempt of an operation begins. repeat: of an operation whose answer is known."""

    operation: Operation
    attempt: int
    deadline_s: float | None = None
    repeat: bool = False


class Answered(Event, frozen=True, tag="answered"):
    """An attempt has ended.

    Fields:
        outcome: "ok", or the name of the error. sure: the server said so, and the operation is done; else it may have
            had its effect, or have it yet. value: of the result. words: of the error.
    """

    name: str
    attempt: int
    outcome: str
    sure: bool = False
    value: int | None = None
    words: str = ""


class Charged(Event, frozen=True, tag="charged"):
    """A client has read its usage: requests by function. asked_s: when it asked."""

    client: str
    asked_s: float
    requests: dict[str, int]


class Program(Event, frozen=True, tag="program"):
    """A client's program has started, was killed, or has ended with a status."""

    client: str
    what: str
    status: int | None = None
    words: str = ""


class Served(Event, frozen=True, tag="server"):
    """A server is ready, was killed, has ended, or did not start."""

    what: str
    words: str = ""


class Fault(Event, frozen=True, tag="fault"):
    """The nemesis has done harm. whom: a process or a client. for_s: until it ends."""

    what: str
    whom: str = ""
    for_s: float = 0.0


class Rest(Event, frozen=True, tag="rest"):
    """The nemesis has begun to rest. until_s: no fault begins before."""

    until_s: float


AnyEvent = Invoked | Answered | Charged | Program | Served | Fault | Rest
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class Recorder:
    """Appends events to a file. Any number of threads may use it."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, event: AnyEvent) -> None:
        os.write(self._fd, _encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read(files: Iterable[Path]) -> list[AnyEvent]:
    """Return the events of files, in the order of their times."""
    events = [_decode(line) for file in files if file.exists() for line in file.read_bytes().splitlines()]
    return sorted(events, key=lambda event: event.at_s)


def write(events: Iterable[AnyEvent], file: Path) -> None:
    file.write_bytes(b"".join(_encode(event) + b"\n" for event in events))


def now_s() -> float:
    return round(monotonic(), 6)
