"""The results of a run, in a file with a line of JSON for each: a run that was stopped goes on with what is missing."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import msgspec

from kaas.errors import InvalidRecord
from kaas.output_files import write_whole
from kaas.papers.breakdown import Breakdown, Properties, Warmth
from kaas.papers.cells import Cell, Found


class Hardware(msgspec.Struct, frozen=True, tag=True):
    """A machine that measured, with its packages.

    Fields:
        date: of the run's beginning, in ISO form. commit: of KaaS' repository; "" without one. load: of the machine,
            the mean of a minute, before the run. scale: of the testbed.
    """

    processor: str
    processors: int
    versions: dict[str, str]
    date: str
    commit: str
    load: float
    scale: str = "small"

    @classmethod
    def here(cls, scale: str = "small") -> Hardware:
        """Return those of this machine, now."""
        names = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        models = [line.partition(":")[2].strip() for line in names if line.startswith("model name")]
        packages = {"kaas-gpu", "ray", "numpy", "cuda-core"}
        versions = {"python": platform.python_version(), **{name: version(name) for name in sorted(packages)}}
        processor, today = models[0] if models else platform.machine(), date.today().isoformat()
        return cls(processor, os.cpu_count() or 1, versions, today, _commit(), round(os.getloadavg()[0], 1), scale)

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        texts = (self.processor, self.date, self.commit, *self.versions, *self.versions.values())
        date.fromisoformat(self.date)
        plain = all(text.isprintable() and not {*"|<>"} & {*text} for text in texts)  # they go into a page
        if not plain or self.processors < 1 or not 0 <= self.load < math.inf:
            raise ValueError("no machine has such properties")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""


def set_aside(file: Path, *, copied: bool = False) -> list[Path]:
    """Rename a file of results, whatever is in it, to the first free name of .old, .old2 and so on.

    An empty file is left. Return the files of these names, oldest first. copied: the file stays, and a copy has the
    name.
    """
    number, aside = 1, file.with_suffix(".old")
    earlier: list[Path] = []
    while aside.exists():
        earlier.append(aside)
        number += 1
        aside = file.with_suffix(f".old{number}")
    if not file.is_file() or file.stat().st_size == 0:
        return earlier
    if copied:
        write_whole(aside, file.read_bytes())
    else:
        file.rename(aside)
    return [*earlier, aside]


def has_results(file: Path, folder: Path) -> bool:
    """Return True if a file is one of a folder's results, of any scale, or of its earlier ones, whatever its name."""
    kept = [*folder.glob("kaas-*.jsonl"), *folder.glob("kaas-*.old*")]
    named = file.resolve().parent == folder.resolve() and file.match("kaas-*.jsonl")
    return named or any(file.exists() and file.samefile(each) for each in kept if each.exists())


ResultLine = Hardware | Breakdown | Properties | tuple[Cell, Found]


class Results:
    """The content of a file, and additions to it.

    Fields:
        found: the cells. breakdowns: of Figure 8. properties: of Table 1. measured_on: the runs' machines, in order.
    """

    def __init__(self, file: Path, scale: str = "small") -> None:
        """Read the file, if there is one. A last line without its end is of a run that was killed, and is cut off.

        Raises:
            InvalidRecord: a line is no result, or of another scale, or a cell has two.
        """
        self._file, self._machine = file, list[Hardware]()
        if file.exists() and not file.is_file():
            raise InvalidRecord(f"{file} is no file", path=str(file), line=0)
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
                _check(kept, scale)
                self._take(kept)
            except (ValueError, RecursionError) as error:  # msgspec's and UnicodeDecodeError are ValueErrors
                remedy = f"with --scale {scale}, `--figure all --fresh` sets it aside, and measures all again"
                message = f"{file}, line {number}: {error}; {remedy}"
                raise InvalidRecord(message, path=str(file), line=number) from error

    @property
    def process_start_s(self) -> list[float]:
        """The seconds of a request of the micro-benchmark that starts a process, if it has been measured."""
        return [each.total_s for each in self.breakdowns if (each.task, each.start) == ("eTask", Warmth.COLD)]

    def measuring_on(self, machine: Hardware) -> None:
        """Name the machine of the results that follow; one that measures nothing does not come into the file."""
        self._machine = [machine]

    def forget(self, wanted: Callable[[ResultLine], bool]) -> None:
        """Take results out of the file."""
        lines: list[ResultLine] = [*self.measured_on, *self.breakdowns, *self.properties, *self.found.items()]
        left = [each for each in lines if isinstance(each, Hardware) or not wanted(each)]
        self.found, self.breakdowns, self.properties, self.measured_on = {}, [], [], []
        measured = not all(isinstance(each, Hardware) for each in left)
        for each in left if measured else ():
            self._take(each)
        data = b"".join(msgspec.json.encode(each) + b"\n" for each in left) if measured else b""
        write_whole(self._file, data)
        self._nbytes = len(data)

    def add(self, *kept: ResultLine) -> None:
        """Take in results, and write them to the file, all or none."""
        kept, self._machine = (*self._machine, *kept), []
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


def _check(kept: ResultLine, scale: str) -> None:
    """Check a line of a file.

    Raises:
        ValueError
    """
    match kept:
        case Hardware():
            if kept.scale != scale:
                raise ValueError(f"the results are of the scale {kept.scale!r}, not {scale!r}")
        case Cell() as cell, Found() as found:
            if cell.online != (found.offered_per_s > 0):
                raise ValueError("requests are offered at a rate online, and only there")
