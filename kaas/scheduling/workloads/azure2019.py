"""The Azure Functions trace of 2019 (Shahrad et al., ATC 2020), read from its published files.

A day has three files: calls by function and minute, run times by function, and memory by application. The calls are a
line for each function, but requests are wanted by time: each hour is a pass over its day's file, of which only the
calls in that hour are kept.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from statistics import fmean

from kaas.errors import InvalidTrace
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import AzureTrace, ScenarioFunction, ScenarioRequest

DAY_MINUTES, HOUR_MINUTES = 1440, 60
CALLS = "invocations_per_function_md.anon.d{day:02}.csv"
RUNS = "function_durations_percentiles.anon.d{day:02}.csv"
MEMORY = "app_memory_percentiles.anon.d{day:02}.csv"
LONGEST_LINE = 1 << 20
MOST = 1e12
"""Of any number of the files."""
MOST_CALLS = 10**7
"""Of a function in a minute."""


class Azure2019:
    """A part of the trace. A function is named by its application and itself; its client is its owner.

    Functions without run times, or whose application has no memory, have the mean of the others.
    """

    def __init__(self, trace: AzureTrace, seed: int) -> None:
        self._folder = Path(trace.azure2019)
        self._first, self._end = trace.minutes
        self._load_mb_s = trace.load_mb_s
        self._seed = seed

    def functions(self) -> dict[str, ScenarioFunction]:
        """Return the functions that are called in this part of the trace.

        Raises:
            InvalidTrace: a file is missing, or not as published.
        """
        owners: dict[str, str] = {}
        run_s: dict[str, float] = {}
        memory_mb: dict[str, float] = {}
        for day, first, end in self._days():
            for _, _, columns, fields in self._called(day, first, end):
                owners.setdefault(_function(columns, fields), fields[columns["HashOwner"]])
            for file, number, columns, fields in self._lines(RUNS, day, ("HashApp", "HashFunction", "Average")):
                name = _function(columns, fields)
                if name in owners:
                    run_s.setdefault(name, _number(file, number, fields[columns["Average"]]) / 1000)
            for file, number, columns, fields in self._lines(MEMORY, day, ("HashApp", "AverageAllocatedMb")):
                told = fields[columns["AverageAllocatedMb"]]
                memory_mb.setdefault(fields[columns["HashApp"]], _number(file, number, told))
        usual_s, usual_mb = (fmean(known.values()) if known else 0.0 for known in (run_s, memory_mb))
        made = {}
        for name, owner in owners.items():
            own_mb = memory_mb.get(name.partition("/")[0], usual_mb)
            made[name] = ScenarioFunction(own_mb, own_mb / self._load_mb_s, run_s.get(name, usual_s), client=owner)
        return made

    def requests(self) -> Iterator[ScenarioRequest]:
        """Yield the calls from the first minute on; within a minute they come at times drawn uniformly.

        Raises:
            InvalidTrace: as `functions`.
        """
        draws = Draws(self._seed, "azure2019")
        for day, first, end in self._days():
            before = (day - 1) * DAY_MINUTES - self._first
            for start in range(first, end, HOUR_MINUTES):
                until = min(end, start + HOUR_MINUTES)
                minutes = self._counts(day, start, until)
                for minute in range(start, until):
                    calls = (zip(_parts(draws, count), repeat(name)) for name, count in minutes[minute])
                    for part, name in heapq.merge(*calls):
                        yield ScenarioRequest(name, 60 * (before + minute + part))

    def _counts(self, day: int, first: int, end: int) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Return the functions that are called in each minute from first to before end, with their calls."""
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for file, number, columns, fields in self._called(day, first, end):
            name = _function(columns, fields)
            for minute in range(first, end):
                if count := _count(file, number, fields[columns[str(minute + 1)]]):
                    found[minute].append((name, count))
        return found

    def _days(self) -> Iterator[tuple[int, int, int]]:
        """Yield the days, counted from 1 as the files are, with the first minute and the one after the last."""
        for day in range(self._first // DAY_MINUTES, -(-self._end // DAY_MINUTES)):
            offset = day * DAY_MINUTES
            yield day + 1, max(0, self._first - offset), min(DAY_MINUTES, self._end - offset)

    def _called(self, day: int, first: int, end: int) -> Iterator[tuple[Path, int, Mapping[str, int], list[str]]]:
        """Yield the lines of functions that are called between two minutes of a day."""
        minutes = [str(minute + 1) for minute in range(first, end)]
        for file, number, columns, fields in self._lines(
            CALLS, day, ("HashOwner", "HashApp", "HashFunction", *minutes)
        ):
            if any(fields[columns[minute]] not in ("0", "") for minute in minutes):
                yield file, number, columns, fields

    def _lines(
        self, name: str, day: int, needed: Sequence[str]
    ) -> Iterator[tuple[Path, int, Mapping[str, int], list[str]]]:
        """Yield the file, the number, the places of the columns and the fields of each line of a day's file."""
        path = self._folder / name.format(day=day)
        try:
            with path.open("rb") as file:
                head = _fields(path, 1, file.readline(LONGEST_LINE))
                columns = {column: place for place, column in enumerate(head)}
                if twice := [column for place, column in enumerate(head) if columns[column] != place]:
                    raise _wrong(path, 1, f"two columns {twice[0]!r}")
                if missing := [column for column in needed if column not in columns]:
                    raise _wrong(path, 1, f"no column {missing[0]!r}")
                number = 1
                while line := file.readline(LONGEST_LINE):
                    number += 1
                    fields = _fields(path, number, line)
                    if len(fields) != len(head):
                        raise _wrong(path, number, f"{len(fields)} columns, and {len(head)} in the first line")
                    yield path, number, columns, fields
        except OSError as error:
            raise _wrong(path, 0, f"cannot be read: {error.strerror}") from error


def _parts(draws: Draws, count: int) -> Iterator[float]:
    """Yield so many parts of a minute as if they were drawn uniformly and sorted, but one by one: each from those left.

    The least of n uniform draws is distributed as 1 - u ** (1 / n), and the others are uniform in the rest.
    """
    rest = 1.0
    for left in range(count, 0, -1):
        rest *= (1.0 - draws.uniform()) ** (1.0 / left)
        yield 1.0 - rest


def _fields(path: Path, line: int, text: bytes) -> list[str]:
    try:
        return text.decode("ascii").rstrip("\r\n").split(",")
    except UnicodeDecodeError as error:
        raise _wrong(path, line, "is not ASCII") from error


def _function(columns: Mapping[str, int], fields: Sequence[str]) -> str:
    return f"{fields[columns['HashApp']]}/{fields[columns['HashFunction']]}"


def _count(path: Path, line: int, text: str) -> int:
    """Return the calls of a minute; a gap is none."""
    if not text:
        return 0
    number = _number(path, line, text)
    if not number.is_integer() or number > MOST_CALLS:
        raise _wrong(path, line, f"{text!r} calls in a minute")
    return int(number)


def _number(path: Path, line: int, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise _wrong(path, line, f"{text!r} is no number from 0 to {MOST:g}")
    return number


def _wrong(path: Path, line: int, message: str) -> InvalidTrace:
    place = f"{path}, line {line}" if line else f"{path}"
    return InvalidTrace(f"{place}: {message}", path=str(path), line=line)
