"""The results of a run, in a file with a line of JSON for each: a run that was stopped goes on with what is missing."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from kaas.errors import InvalidRecord
from kaas.papers.breakdown import Breakdown, Properties
from kaas.papers.cells import Cell, Found


class Hardware(msgspec.Struct, frozen=True, tag=True):
    """A machine that measured, with its packages."""

    processor: str
    processors: int
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Hardware:
        """Return those of this machine."""
        names = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        models = [line.partition(":")[2].strip() for line in names if line.startswith("model name")]
        packages = {"kaas-gpu", "ray", "numpy", "cuda-core"}
        versions = {"python": platform.python_version(), **{name: version(name) for name in sorted(packages)}}
        return cls(models[0] if models else platform.machine(), os.cpu_count() or 1, versions)


ResultLine = Hardware | Breakdown | Properties | tuple[Cell, Found]


class Results:
    """The content of a file, and additions to it.

    Fields:
        found: the cells. breakdowns: of Figure 8. properties: of Table 1. measured_on: those that measured, in order.
    """

    def __init__(self, file: Path) -> None:
        """Read the file, if there is one.

        Raises:
            InvalidRecord: a line of it is no result.
        """
        self._file = file
        self.found: dict[Cell, Found] = {}
        self.breakdowns: list[Breakdown] = []
        self.properties: list[Properties] = []
        self.measured_on: list[Hardware] = []
        for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else (), 1):
            try:
                self._take(msgspec.json.decode(line, type=ResultLine))
            except msgspec.MsgspecError as error:
                message = f"{file}, line {number}: {error}; --fresh measures all again"
                raise InvalidRecord(message, path=str(file), line=number) from error

    def add(self, *kept: ResultLine) -> None:
        """Take in results, and write them to the file, all or none."""
        for each in kept:
            self._take(each)
        with self._file.open("ab") as lines:
            lines.write(b"".join(msgspec.json.encode(each) + b"\n" for each in kept))

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
