"""Iterations run one after the other, in few launches and with any values of the request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st

import kaas
import softgpu as software
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.plan.graph_cache import CHAIN_GROWTH, MAX_CHAIN_KERNELS, MAX_INSTANCES, split
from kaas.executor.plan.plan import OFTEN_BYTES, OFTEN_READS
from kaas.ktask.request import encode_scalars
from tests.executor.conftest import KERNELS, graphs_of
from tests.executor.interpreter import interpret
from tests.timeouts import TIMEOUT_S

N = 48
A, B, C, D = (kaas.Buffer(name, N, "int32") for name in "abcd")
COUNT = kaas.i32(N)
ROUNDS = (1, 15, 16, 21, 64, 70, 300)


@pytest.fixture(params=[None, 1, 2, 3], ids=["in order", "strict-1", "strict-2", "strict-3"])
def order(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run launches in the order of the graph, or in any order that its edges allow."""
    software.set_strict(request.param)
    yield
    software.set_strict(None)


@pytest.fixture(scope="module")
def crossed(library: kaas.Library) -> kaas.KTask:
    """Return a kTask of two kernels without edges to them, and two without edges from them.

    Both first kernels need the results of both last ones of the iteration before.
    """

    def kernel(symbol: str, *args: Any) -> kaas.Kernel:
        return kaas.Kernel(library, symbol, 3, 16, [*args, COUNT])

    kernels = [
        kernel("add", kaas.In(A), kaas.In(B), kaas.Out(C)),
        kernel("add", kaas.In(B), kaas.In(A), kaas.Out(D)),
        kernel("axpy", kaas.Scalar("factor", "i32"), kaas.In(C), kaas.InOut(A)),
        kernel("axpy", kaas.i32(3), kaas.In(D), kaas.InOut(B)),
    ]
    task = kaas.KTask(kernels, [A, B, D], iterations=kaas.Scalar("rounds", "u32"))
    assert {later for _, later in task.edges} == {before + 2 for before, _ in task.edges} == {2, 3}
    return task


def check(executor: Executor, task: kaas.KTask, a: InputSource, b: InputSource, factor: int, rounds: int) -> None:
    scalars = {"factor": factor, "rounds": rounds}
    outputs = executor.run(RunRequest(task, {"a": a, "b": b}, encode_scalars(task, scalars))).outputs
    for name, array in interpret(task, {"a": a.value, "b": b.value}, scalars).items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=f"{name} after {rounds}")


@pytest.mark.usefixtures("order")
def test_each_iteration_waits_for_the_one_before(executor: Executor, crossed: kaas.KTask) -> None:
    a, b = (InputSource(np.arange(k, k + N, dtype=np.int32)) for k in (0, 5))
    for rounds in ROUNDS:
        check(executor, crossed, a, b, 7, rounds)


@pytest.mark.usefixtures("order")
def test_every_iteration_has_the_values_of_its_request(executor: Executor, library: kaas.Library) -> None:
    """Addresses and scalars change: no launch of a chain keeps the values of an earlier request."""
    args: list[Any] = [kaas.Scalar("factor", "i32"), kaas.In(A), kaas.InOut(B), COUNT]
    task = kaas.KTask(
        [kaas.Kernel(library, "axpy", 3, 16, args)], [B], iterations=kaas.Scalar("rounds", "u32"), name="values"
    )
    zeros = InputSource(np.zeros(N, np.int32))
    for turn in range(6):
        which = turn % 4
        a = InputSource(np.full(N, which + 1, np.int32), key=b"iterated-%d" % which)
        for rounds in ROUNDS:
            check(executor, task, a, zeros, turn - 2, rounds)
    chains = graphs_of(executor, task)._chains
    assert sorted(length for length, _ in chains) == [1, 4, 16, 64]
    assert {len(chain._instances) for chain in chains.values()} == {MAX_INSTANCES}


def read_by(launches: int, library: kaas.Library, n: int) -> kaas.KTask:
    """Return a kTask: y = x + launches * w."""
    x, w, y = (kaas.Buffer(name, n, "int32") for name in "xwy")
    steps = [x, *(kaas.Buffer(f"t{k}", n, "int32") for k in range(1, launches)), y]
    kernels = [
        kaas.Kernel(library, "add", -(-n // 64), 64, [kaas.In(one), kaas.In(w), kaas.Out(next_), kaas.i32(n)])
        for one, next_ in pairwise(steps)
    ]
    return kaas.KTask(kernels, [y])


@pytest.mark.parametrize(
    ("launches", "n", "constant", "calls"),
    [
        (OFTEN_READS, N, False, 0),
        (OFTEN_READS - 1, N, False, OFTEN_READS - 1),
        (OFTEN_READS, OFTEN_BYTES // 4 + 1, False, OFTEN_READS),
        (OFTEN_READS, N, True, OFTEN_READS),
    ],
    ids=["often", "not often", "large", "constant"],
)
def test_a_small_object_that_many_launches_read_is_copied_to_a_fixed_place(
    executor: Executor,
    library: kaas.Library,
    monkeypatch: pytest.MonkeyPatch,
    launches: int,
    n: int,
    constant: bool,
    calls: int,
) -> None:
    """Otherwise each launch is re-pointed to the object. calls: calls of the driver for that, for one more object."""
    task, x = read_by(launches, library, n), np.arange(n, dtype=np.int32)
    made, real = [0], driver.cuGraphExecKernelNodeSetParams

    def count(*args: Any) -> Any:
        made[0] += 1
        return real(*args)

    monkeypatch.setattr(driver, "cuGraphExecKernelNodeSetParams", count)
    for number in range(1, 8):
        key, constants = b"read-%d-%d-%d" % (launches, n, number), b"constants" if constant else None
        w = InputSource(np.full(n, number, np.int32), key=key, constants=constants)
        made[0] = 0
        result = executor.run(RunRequest(task, {"x": InputSource(x), "w": w}, {}))
        np.testing.assert_array_equal(result.outputs["y"], x + launches * number)
        if number > MAX_INSTANCES:
            assert made[0] == calls


@given(iterations=st.one_of(st.integers(1, 2000), st.integers(1, 2**63)), kernels=st.integers(1, 300))
def test_iterations_are_split_into_few_launches(iterations: int, kernels: int) -> None:
    parts = split(iterations, kernels)
    lengths = [length for length, _ in parts]
    assert sum(length * times for length, times in parts) == iterations
    assert lengths == sorted(set(lengths), reverse=True)
    assert all(length == 1 or length * kernels <= MAX_CHAIN_KERNELS for length in lengths)
    assert parts[0][1] >= min(CHAIN_GROWTH, iterations), "a chain is made for more than a few launches"
    assert all(times < CHAIN_GROWTH for _, times in parts[1:])
    longer = lengths[0] * CHAIN_GROWTH
    assert longer * kernels > MAX_CHAIN_KERNELS or parts[0][1] < CHAIN_GROWTH**2


def test_a_million_iterations_of_two_kernels() -> None:
    assert split(1_000_000, 2) == [(64, 15625)]
    assert split(999_999, 2) == [(64, 15624), (16, 3), (4, 3), (1, 3)]


ENDING = """
import sys, threading
import kaas
import softgpu
from kaas.errors import DeviceLost
from kaas.executor.device.graphs import GraphInstance
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest

b = kaas.Buffer("b", 64, "int32")
empty = kaas.Kernel(kaas.Library.from_file(sys.argv[1]), "fill", 1, 32, [kaas.Out(b), kaas.i32(7), kaas.i32(64)])
executor = Executor(open_device("software", 0), cache_bytes=1 << 20)
if sys.argv[2] == "cancel":
    launch = GraphInstance.launch
    def cancelled(*args):
        threading.Thread(target=softgpu.cancel).start()
        launch(*args)
    GraphInstance.launch = cancelled
else:
    softgpu.inject(softgpu.Fault(sys.argv[2], at=100_000))
try:
    executor.run(RunRequest(kaas.KTask([empty], [b], iterations=1 << 40), {}, {}, profile=sys.argv[3] == "profile"))
except DeviceLost as error:
    print(error is executor.lost)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "run"),
    [("cancel", "graph"), ("launch_failure", "graph"), ("device_lost", "graph"), ("launch_failure", "profile")],
)
def test_endlessly_many_iterations_end_with_their_device(how: str, run: str) -> None:
    command = [sys.executable, "-c", ENDING, str(KERNELS / "simple.ptx"), how, run]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
