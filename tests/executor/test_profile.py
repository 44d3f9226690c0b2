"""The time of each kernel: measured without the graph, with the results of the graph."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.executor.device.graphs import GraphInstance
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.plan import graph_cache
from kaas.ktask.request import encode_scalars
from tests.executor.conftest import KERNELS
from tests.executor.interpreter import interpret
from tests.timeouts import TIMEOUT_S

N = 64
A, B, C, D = (kaas.Buffer(name, N, "int32") for name in "abcd")
COUNT = kaas.i32(N)


@pytest.fixture(scope="module")
def task(library: kaas.Library) -> kaas.KTask:
    """Three kernels one after the other, the first and the last of the same code."""
    add: list[Any] = [kaas.In(A), kaas.In(B), kaas.Out(C), COUNT]
    scale: list[Any] = [kaas.In(C), kaas.Out(D), kaas.Scalar("factor", "i32"), COUNT]
    again: list[Any] = [kaas.In(D), kaas.In(A), kaas.InOut(B), COUNT]
    kernels = [
        kaas.Kernel(library, symbol, 2, 32, args) for symbol, args in (("add", add), ("scale", scale), ("add", again))
    ]
    return kaas.KTask(kernels, [B], iterations=kaas.Scalar("rounds", "u32"))


def request(task: kaas.KTask, rounds: int, factor: int, *, profile: bool) -> tuple[RunRequest, dict[str, Any]]:
    inputs = {"a": np.arange(N, dtype=np.int32), "b": np.arange(rounds, rounds + N, dtype=np.int32)}
    scalars = {"rounds": rounds, "factor": factor}
    sources = {name: InputSource(array, key=name.encode() + array.tobytes()) for name, array in inputs.items()}
    return RunRequest(task, sources, encode_scalars(task, scalars), profile=profile), interpret(task, inputs, scalars)


def test_every_kernel_has_a_time(executor: Executor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = (1, graph_cache._EVENT_PAIRS - 1, graph_cache._EVENT_PAIRS, 2 * graph_cache._EVENT_PAIRS + 1)
    executor.run(request(task, 1, 1, profile=False)[0])
    with monkeypatch.context() as patch:
        patch.delattr(GraphInstance, "launch")
        for turn, number in enumerate(rounds):
            asked, expected = request(task, number, turn, profile=True)
            result = executor.run(asked)
            np.testing.assert_array_equal(result.outputs["b"], expected["b"])
            measured = [(time.symbol, time.index, time.launches) for time in result.stats.kernels]
            assert measured == [("add", 0, number), ("scale", 1, number), ("add", 2, number)]
            assert not result.stats.graph
            seconds = [time.seconds for time in result.stats.kernels]
            assert min(seconds) > 0
            assert sum(seconds) <= result.stats.device_s <= result.stats.stages["total"]


def test_requests_before_and_after_run_as_a_graph(executor: Executor, task: kaas.KTask) -> None:
    for turn, profile in enumerate((False, True, False, True, False)):
        asked, expected = request(task, 20, turn, profile=profile)
        result = executor.run(asked)
        np.testing.assert_array_equal(result.outputs["b"], expected["b"])
        assert result.stats.graph is (result.stats.kernels == ()) is (not profile)


MODELLED = """
import sys
import kaas
import softgpu
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest

model = softgpu.Model(kernels={"fill": softgpu.Takes(1e-3), "reverse": softgpu.Takes(4e-3)})
softgpu.load([softgpu.Device(1 << 24, model=model)])
library = kaas.Library.from_file(sys.argv[1])
a, b = (kaas.Buffer(name, 64, "int32") for name in "ab")
fill = kaas.Kernel(library, "fill", 1, 64, [kaas.Out(a), kaas.i32(7), kaas.i32(64)])
reverse = kaas.Kernel(library, "reverse", 1, 64, [kaas.In(a), kaas.Out(b)], shared_bytes=256)
executor = Executor(open_device("software", 0), cache_bytes=1 << 20)
result = executor.run(RunRequest(kaas.KTask([fill, reverse], [b], iterations=3), {}, {}, profile=True))
filling, reversing = result.stats.kernels
assert filling.seconds > 2.9e-3 and reversing.seconds > 11.9e-3, result.stats.kernels
assert result.stats.device_s > 14.9e-3
assert (result.outputs["b"] == 7).all()
"""


@pytest.mark.processes
def test_each_kernel_has_its_own_time() -> None:
    command = [sys.executable, "-c", MODELLED, str(KERNELS / "simple.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
