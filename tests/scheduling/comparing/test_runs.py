"""Runs in parallel processes, and their spread over seeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.comparing.figures import measure
from kaas.scheduling.comparing.runs import SimulatedRun, measure_all, spread, spreads
from kaas.scheduling.simulation.scenario_file import read

SCENARIO = read(
    {
        "functions": {"A": {"run_s": 1, "run_cv": 0.5, "memory_mb": 1, "load_s": 1}},
        "requests": [{"function": "A", "at_s": number} for number in range(20)],
    }
)


@pytest.mark.processes
def test_runs_of_other_processes_are_those_of_this_one_in_their_order() -> None:
    scenarios = [replace(SCENARIO, seed=seed) for seed in range(4)]
    done: list[None] = []
    measured = measure_all([SimulatedRun(partial(replace, each)) for each in scenarios], lambda: done.append(None))
    assert measured == [measure(each) for each in scenarios]
    assert len({each.mean_latency_s for each in measured}) == len(done) == 4


@pytest.mark.processes
def test_an_error_of_a_run_ends_all_of_them() -> None:
    wrong = read({"policy": {"name": "lalbo3", "limit": -1}, "requests": []})
    with pytest.raises(InvalidScenario, match="limit"):
        measure_all([SimulatedRun(partial(replace, each)) for each in (SCENARIO, wrong)])


LONG = """
import sys
from functools import partial
from pathlib import Path
from kaas.scheduling.comparing.runs import SimulatedRun, measure_all

def endless(number):
    Path(f"{sys.argv[1]}/{number}").touch()
    while True: pass

measure_all([SimulatedRun(partial(endless, number)) for number in range(2)])
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_long_runs_end_with_the_program(tmp_path: Path, number: signal.Signals) -> None:
    """A signal to the program alone, as a supervisor sends it, and not to its group."""
    file = tmp_path / "long.py"
    file.write_text(LONG)
    # a shell may have left SIGINT ignored
    begin = "import runpy, signal; signal.signal(2, signal.default_int_handler); runpy.run_path({!r}, None, '__main__')"
    command = [sys.executable, "-c", begin.format(str(file)), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reader, writer = os.pipe()  # whose end comes when all processes have ended
    with subprocess.Popen(command, env=environment, pass_fds=[writer], stderr=subprocess.DEVNULL) as program:
        os.close(writer)
        while not all((tmp_path / str(each)).exists() for each in range(2)):
            assert program.poll() is None
        program.send_signal(number)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""


def test_a_run_of_a_policy_of_ones_own() -> None:
    run = SimulatedRun(partial(replace, SCENARIO), {"name": "kaas.scheduling.policies.sjf:ShortestJobFirst"})
    assert run.figures().mean_latency_s == measure(SCENARIO).mean_latency_s


def test_the_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1, 3]) == pytest.approx((2, 2**0.5))
    assert spread([5]) == (5, 0)
    figures = measure(SCENARIO)
    assert spreads([figures, figures])["mean_latency_s"] == (figures.mean_latency_s, 0)
