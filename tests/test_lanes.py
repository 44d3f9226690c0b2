"""The lanes: what each leaves out, and that nothing is in none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import OUTSIDE, QUICK_CASES, is_outside, spread

pytest_plugins = ["pytester"]

TESTS = """
import subprocess, sys
import pytest

def test_plain(): pass

@pytest.mark.ray
def test_ray(): pass

@pytest.mark.processes
def test_processes(): subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.full
def test_full(): pass

@pytest.mark.parametrize("case", spread(range(9), 3))
def test_spread(case): pass
"""
CONFTEST = """
import pytest
from tests.lanes import Lane, add_option

def pytest_addoption(parser): add_option(parser)
def pytest_configure(config):
    config.pluginmanager.register(Lane(config.getoption("lane")))
    for name in ("ray", "processes", "full"): config.addinivalue_line("markers", name)
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some="from tests.lanes import spread\n" + TESTS)
    pytester.makepyfile(test_whole="import pytest\npytestmark = pytest.mark.full\ndef test_it(): pass\n")
    return pytester


@pytest.mark.processes
@pytest.mark.parametrize(("lane", "passed"), [("quick", 1 + 3), ("test", 3 + 3), ("all", 4 + 9 + 1)])
def test_a_lane_runs_the_tests_that_are_marked_for_it(folder: pytest.Pytester, lane: str, passed: int) -> None:
    ended = folder.runpytest_subprocess("--lane", lane, "-p", "no:cacheprovider")
    assert ended.parseoutcomes()["passed"] == passed


@pytest.mark.processes
def test_the_quick_lane_refuses_programs_and_names_the_marker(folder: pytest.Pytester) -> None:
    folder.makepyfile(test_more="import subprocess\ndef test_it(): subprocess.run(['true'])\n")
    ended = folder.runpytest_subprocess("--lane", "quick", "-p", "no:cacheprovider")
    assert ended.parseoutcomes() == {"passed": 4, "failed": 1, "deselected": 9}
    ended.stdout.fnmatch_lines(["*test_it starts a program*mark it pytest.mark.processes*"])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lane", "asked", "passed"),
    [("quick", (), QUICK_CASES), ("quick", ("-k", "many"), 20), ("quick", ("test_many.py",), 20), ("test", (), 20)],
)
def test_the_quick_lane_runs_a_sample_of_many_cases_and_all_of_what_is_asked_for(
    pytester: pytest.Pytester, lane: str, asked: tuple[str, ...], passed: int
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_many="""
        import pytest
        @pytest.mark.parametrize("case", range(20))
        def test_many(case): pass
    """
    )
    ended = pytester.runpytest_subprocess("--lane", lane, *asked, "-p", "no:cacheprovider")
    assert ended.parseoutcomes()["passed"] == passed


def test_files_of_packages_that_a_lane_lacks_are_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "test_models.py"
    file.write_text("import numpy, tvm.relax\n")
    assert is_outside(file, "quick")
    assert not is_outside(file, "test")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "conftest.py").write_text("from cutlass_blas import gemm\n")
    assert is_outside(folder, "quick")
    assert not is_outside(tmp_path, "quick")


@pytest.mark.parametrize(("number", "count", "chosen"), [(9, 3, {0, 3, 6}), (10, 4, {0, 2, 5, 7}), (2, 5, {0, 1})])
def test_a_spread_sample(number: int, count: int, chosen: set[int]) -> None:
    cases = spread(range(number), count)
    assert {case for case in cases if isinstance(case, int)} == chosen
    assert len(cases) == number


def test_each_lane_has_all_of_the_one_before_it() -> None:
    assert OUTSIDE["quick"] > OUTSIDE["test"] > OUTSIDE["all"] == set()
