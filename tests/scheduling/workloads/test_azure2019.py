"""The Azure Functions trace of 2019: files of its form, of other forms, and cut ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kaas.errors import InvalidTrace
from kaas.scheduling.simulation.scenario import AzureTrace, ScenarioFunction
from kaas.scheduling.workloads.azure2019 import Azure2019

MINUTES = [str(minute) for minute in range(1, 1441)]
CALLS_HEAD = ",".join(["HashOwner", "HashApp", "HashFunction", "Trigger", *MINUTES])
RUNS_HEAD = (
    "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_Average_1,"
    "percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100"
)
MEMORY_HEAD = (
    "HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct5,"
    "AverageAllocatedMb_pct25,AverageAllocatedMb_pct50,AverageAllocatedMb_pct75,AverageAllocatedMb_pct95,"
    "AverageAllocatedMb_pct99,AverageAllocatedMb_pct100"
)


def calls(owner: str, app: str, function: str, **minutes: int) -> str:
    """Return a line; minutes: m1=3 are three calls in the first minute."""
    return ",".join([owner, app, function, "http", *(str(minutes.get(f"m{minute}", 0)) for minute in MINUTES)])


def run(app: str, function: str, average_ms: float) -> str:
    return ",".join(["o", app, function, *[str(average_ms)] * 11])


def memory(app: str, megabytes: float) -> str:
    return ",".join(["o", app, "1", *[str(megabytes)] * 9])


def trace(
    folder: Path, day: int = 1, *, called: list[str], runs: list[str] | None = None, memories: list[str] | None = None
) -> Path:
    files = (
        (f"invocations_per_function_md.anon.d{day:02}.csv", [CALLS_HEAD, *called]),
        (f"function_durations_percentiles.anon.d{day:02}.csv", [RUNS_HEAD, *(runs or [])]),
        (f"app_memory_percentiles.anon.d{day:02}.csv", [MEMORY_HEAD, *(memories or [])]),
    )
    for name, lines in files:
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def opened(folder: Path, first: int = 0, end: int = 1440) -> Azure2019:
    return Azure2019(AzureTrace(str(folder), (first, end), load_mb_s=100), seed=0)


def test_functions_have_the_mean_times_and_their_applications_memory(tmp_path: Path) -> None:
    lines = [calls("owner", "app", "f", m1=1), calls("owner", "app", "never")]
    trace(tmp_path, called=lines, runs=[run("app", "f", 250)], memories=[memory("app", 50)])
    expected = {"app/f": ScenarioFunction(50, 0.5, 0.25, client="owner")}
    assert opened(tmp_path).functions() == expected


def test_functions_without_times_or_memory_have_the_mean_of_the_others(tmp_path: Path) -> None:
    lines = [calls("o", app, "f", m1=1) for app in ("a", "b", "gap")]
    trace(tmp_path, called=lines, runs=[run("a", "f", 1000), run("b", "f", 3000)], memories=[memory("a", 100)])
    found = opened(tmp_path).functions()["gap/f"]
    assert (found.run_s, found.memory_mb) == (2, 100)


def test_a_minute_with_many_calls_is_read_as_a_stream(tmp_path: Path) -> None:
    trace(tmp_path, called=[calls("o", "a", name, m1=10**7) for name in "fgh"])
    requests = opened(tmp_path, 0, 1).requests()
    first = [next(requests) for _ in range(3000)]
    assert 0 < first[0].at_s <= first[-1].at_s < 0.01  # 500,000 calls come each second
    assert min(Counter(request.function for request in first).values()) > 900


def test_calls_of_a_minute_are_uniform_in_it(tmp_path: Path) -> None:
    requests = list(opened(trace(tmp_path, called=[calls("o", "a", "f", m1=6000)]), 0, 1).requests())
    sixths = Counter(int(request.at_s // 10) for request in requests)
    assert sorted(sixths) == list(range(6))
    assert all(900 < count < 1100 for count in sixths.values())


def test_calls_come_in_their_minutes_in_the_order_of_time(tmp_path: Path) -> None:
    trace(tmp_path, called=[calls("o", "a", "f", m1=5, m61=2, m1440=1), calls("o", "a", "g", m1=3, m3=4)])
    requests = list(opened(tmp_path).requests())
    times = [request.at_s for request in requests]
    assert times == sorted(times)
    minutes = Counter((request.function, int(request.at_s // 60)) for request in requests)
    assert minutes == {("a/f", 0): 5, ("a/f", 60): 2, ("a/f", 1439): 1, ("a/g", 0): 3, ("a/g", 2): 4}
    assert requests == list(opened(tmp_path).requests())


def test_a_part_of_the_trace_begins_at_its_first_minute_and_goes_on_over_days(tmp_path: Path) -> None:
    trace(tmp_path, 1, called=[calls("o", "a", "early", m1=9), calls("o", "a", "f", m1440=1)])
    trace(tmp_path, 2, called=[calls("o", "a", "f", m1=2, m2=9), calls("o", "a", "g", m1=1)])
    part = opened(tmp_path, 1439, 1441)
    assert part.functions().keys() == {"a/f", "a/g"}
    minutes = Counter((request.function, int(request.at_s // 60)) for request in part.requests())
    assert minutes == {("a/f", 0): 1, ("a/f", 1): 2, ("a/g", 1): 1}


def test_empty_cells_are_no_calls(tmp_path: Path) -> None:
    line = calls("o", "a", "f", m2=1).replace(",0,1,0,", ",,1,,", 1)
    trace(tmp_path, called=[line])
    assert [int(request.at_s // 60) for request in opened(tmp_path).requests()] == [1]


def test_an_hour_is_read_when_its_time_comes(tmp_path: Path) -> None:
    """The calls of the second hour are wrong, which the first hour does not find."""
    trace(tmp_path, called=[calls("o", "a", "f", m1=2, m61=1).replace(",1,", ",x,", 1)])
    requests = opened(tmp_path).requests()
    assert [next(requests).function for _ in range(2)] == ["a/f", "a/f"]
    with pytest.raises(InvalidTrace, match="'x' is no number"):
        next(requests)


def wrong(folder: Path) -> InvalidTrace:
    def read_all() -> None:
        opened(folder).functions()
        list(opened(folder).requests())

    with pytest.raises(InvalidTrace) as caught:
        read_all()
    return caught.value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (calls("o", "a", "f", m1=1)[:-5], "columns, and 1444 in the first line"),
        (calls("o", "a", "f", m1=1) + ",1", "1445 columns"),
        (calls("o", "a", "f").replace("0", "x", 1), "'x' is no number"),
        (calls("o", "a", "f").replace("0", "-1", 1), "'-1' is no number"),
        (calls("o", "a", "f").replace("0", "1.5", 1), "'1.5' calls in a minute"),
        (calls("o", "a", "f").replace("0", "nan", 1), "'nan' is no number"),
        (calls("ö", "a", "f", m1=1), "is not ASCII"),
    ],
)
def test_the_first_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "invocations_per_function_md.anon.d01.csv"
    trace(tmp_path, called=[calls("o", "a", "e", m1=1), line])
    error = wrong(tmp_path)
    assert (error.path, error.line) == (str(file), 3)
    assert f"{file}, line 3" in str(error)
    assert message in str(error)


def test_other_columns_are_named(tmp_path: Path) -> None:
    file = trace(tmp_path, called=[]) / "function_durations_percentiles.anon.d01.csv"
    file.write_text(RUNS_HEAD.replace("Average,", "Mean,", 1) + "\n")
    error = wrong(tmp_path)
    assert (error.path, error.line) == (str(file), 1)
    assert "'Average'" in str(error)


def test_a_column_that_stands_twice_is_named(tmp_path: Path) -> None:
    file = trace(tmp_path, called=[]) / "function_durations_percentiles.anon.d01.csv"
    file.write_text(RUNS_HEAD.replace("Count,", "Average,", 1) + "\n")
    error = wrong(tmp_path)
    assert (error.path, error.line) == (str(file), 1)
    assert "two columns 'Average'" in str(error)


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    trace(tmp_path, called=[calls("o", "a", "f", m1=1)])
    (tmp_path / "app_memory_percentiles.anon.d01.csv").write_text("AverageAllocatedMb,More,HashApp\n64,x,a\n")
    assert opened(tmp_path).functions()["a/f"].memory_mb == 64


def test_a_missing_day_is_named(tmp_path: Path) -> None:
    trace(tmp_path, called=[])
    with pytest.raises(InvalidTrace, match=r"d02\.csv: cannot be read") as caught:
        opened(tmp_path, 0, 1441).functions()
    assert caught.value.line == 0
