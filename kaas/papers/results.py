"""The results of a run, in a file with a line of JSON for each: a run that was stopped goes on with what is missing."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

import msgspec

from kaas.errors import InvalidRecord
from kaas.papers.breakdown import Breakdown, Properties
from kaas.papers.cells import Cell, Found


class Hardware(msgspec.Struct, frozen=True, tag=True):
    """A machine that measured, with its packages.

    Fields:
        date: of the run's beginning, in ISO form. commit: of KaaS' repository; "" without one. load: of the machine,
            the mean of a minute, before the run.
    """

    processor: str
    processors: int
    versions: dict[str, str]
    date: str
    commit: str
    load: float

    @classmethod
    def here(cls) -> Hardware:
        """Return those of this machine, now."""
        names = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        models = [line.partition(":")[2].strip() for line in names if line.startswith("model name")]
        packages = {"kaas-gpu", "ray", "numpy", "cuda-core"}
        versions = {"python": platform.python_version(), **{name: version(name) for name in sorted(packages)}}
        processor, today = models[0] if models else platform.machine(), date.today().isoformat()
        return cls(processor, os.cpu_count() or 1, versions, today, _commit(), round(os.getloadavg()[0], 1))

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        texts = (self.processor, self.date, self.commit, *self.versions, *self.versions.values())
        date.fromisoformat(self.date)
        if not all(text.isprintable() for text in texts) or self.processors < 1 or not 0 <= self.load < math.inf:
            raise ValueError("no machine has such properties")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""


ResultLine = Hardware | Breakdown | Properties | tuple[Cell, Found]


class Results:
    """The content of a file, and additions to it.

    Fields:
        found: the cells. breakdowns: of Figure 8. properties: of Table 1. measured_on: the runs' machines, in order.
    """

    def __init__(self, file: Path) -> None:
        """Read the file, if there is one. A last line without its end is of a run that was killed, and is cut off.

        Raises:
            InvalidRecord: a line of it is no result, or a cell has two.
        """
        self._file = file
        self.found: dict[Cell, Found] = {}
        self.breakdowns: list[Breakdown] = []
        self.properties: list[Properties] = []
        self.measured_on: list[Hardware] = []
        whole, end, _ = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")
        self._nbytes = len(whole) + len(end)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                kept = msgspec.json.decode(line, type=ResultLine)
                if kept in self:
                    raise ValueError("this experiment has a result already")
            except (ValueError, RecursionError) as error:  # msgspec's and UnicodeDecodeError are ValueErrors
                message = f"{file}, line {number}: {error}; --fresh measures all again"
                raise InvalidRecord(message, path=str(file), line=number) from error
            self._take(kept)

    def add(self, *kept: ResultLine) -> None:
        """Take in results, and write them to the file, all or none."""
        for each in kept:
            self._take(each)
        data = b"".join(msgspec.json.encode(each) + b"\n" for each in kept)
        with self._file.open("r+b" if self._file.exists() else "wb") as lines:
            lines.truncate(self._nbytes)
            lines.seek(self._nbytes)
            lines.write(data)
        self._nbytes += len(data)

    def __contains__(self, kept: ResultLine) -> bool:
        """Return True if the same experiment has a result."""
        match kept:
            case Breakdown():
                return any((each.task, each.start) == (kept.task, kept.start) for each in self.breakdowns)
            case Properties():
                return any(each.workload == kept.workload for each in self.properties)
            case cell, _:
                return cell in self.found
        return False

    def _take(self, kept: ResultLine) -> None:
        match kept:
            case Hardware():
                self.measured_on.append(kept)
            case Breakdown():
                self.breakdowns.append(kept)
            case Properties():
                self.properties.append(kept)
            case cell, found:
                self.found[cell] = found
