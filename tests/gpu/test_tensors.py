"""On a GPU: arrays of torch and CuPy are read in place, after the work that makes them; globals between clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.executor.device.host_arrays import on_host
from kaas.executor.executor import RunRequest
from kaas.executor.local import executor_for, run_local

pytestmark = pytest.mark.gpu

GPU = Device("gpu")
N = 1 << 20
KERNELS = Path(__file__).parents[1] / "executor" / "kernels"
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")


def library(name: str) -> kaas.Library:
    return kaas.Library.from_file(KERNELS / name)


def add() -> kaas.KTask:
    args: list[Any] = [kaas.In(A), kaas.In(B), kaas.Out(C), kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library("simple.ptx"), "add", N // 256, 256, args)], [C])


def accumulate() -> kaas.KTask:
    args: list[Any] = [kaas.i32(3), kaas.In(B), kaas.InOut(A), kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library("simple.ptx"), "axpy", N // 256, 256, args)], [A])


def check(zeros: Any, ones: Any, stream: Any) -> None:
    """Check arrays of `zeros` and `ones`: N 32-bit integers. In the context `stream` their library uses a stream."""
    with stream:
        for turn in range(20):
            a, b = zeros(), ones()
            for _ in range(50):
                a += turn
            outputs = run_local(add(), {"a": a, "b": b}, device=GPU)
            assert set(outputs["c"].tolist()) == {50 * turn + 1}
            assert set(run_local(accumulate(), {"a": a, "b": b}, device=GPU)["a"].tolist()) == {50 * turn + 3}
            assert set(on_host("a", a).tolist()) == {50 * turn}


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    options = {"dtype": torch.int32, "device": "cuda:0"}
    check(lambda: torch.zeros(N, **options), lambda: torch.ones(N, **options), torch.cuda.stream(torch.cuda.Stream()))


def test_torch_dtypes_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        tensor = torch.arange(64, device="cuda:0").to(getattr(torch, name))
        array = on_host("x", tensor)
        assert array.dtype.name == name
        assert array.astype(np.float32).tolist() == tensor.float().tolist()


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    check(lambda: cupy.zeros(N, cupy.int32), lambda: cupy.ones(N, cupy.int32), cupy.cuda.Stream(non_blocking=True))


@pytest.mark.parametrize("name", ["globals.ptx", "globals.cubin"])
def test_another_client_starts_from_the_first_values(name: str) -> None:
    executor = executor_for(GPU)
    out = kaas.Buffer("out", 7, "int32")
    task = kaas.KTask([kaas.Kernel(library(name), "count", 1, 1, [kaas.Out(out)])], [out])
    if name.endswith("cubin") and executor.device.info().compute_capability[0] != 8:
        pytest.skip("the cubin is for compute capability 8")
    found = [executor.run(RunRequest(task, {}, {}, client)).outputs["out"].tolist() for client in "aaba"]
    first, second = [0, 100, 3, 0, 40, 1000, 7], [1, 99, 5, 5, 41, 1001, 7]
    assert found == [first, second, first, first]
    assert all(library.known for library in executor.prepare(task).globals)
