"""The cases that a GPU is compared with: stored as they are written, right by NumPy, reproduced by the software GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kaas
from examples import nearest_neighbours, pipeline
from kaas.executor.local import run_local
from tests.gpu import stored
from tests.gpu.cases import CASES
from tests.gpu.stored import Arrays, assert_same


def collatz_steps(start: int) -> int:
    steps = 0
    while start != 1:
        start, steps = (3 * start + 1 if start % 2 else start // 2), steps + 1
    return steps


def jacobi_sweeps(a: np.ndarray, b: np.ndarray, sweeps: int) -> np.ndarray:
    wide = a.astype(np.float64)
    rest, diagonal = wide - np.diag(np.diag(wide)), np.diag(wide)
    x = np.zeros(len(b))
    for _ in range(sweeps):
        x = (b - rest @ x) / diagonal
    return x


def advanced(x: np.ndarray, times: int) -> np.ndarray:
    x = x.copy()
    for _ in range(times):
        x[50:] = 3 * x[50:] + 1
    return x


def padded(x: np.ndarray) -> np.ndarray:
    """20,000 integers as blocks of 512."""
    return np.pad(x, (0, 40 * 512 - len(x))).reshape(40, 512)


VALUES = [-128, -32768, -(2**31), -(2**53), 255, 65535, 2**32 - 1, 2**53, np.float16(0.1), 0.10009765625,
          np.float32(0.1), 0.1, 1, -2, 3, 4, 1, 1]  # fmt: skip
"""The values that of_values passes, as doubles; 0.1 in bfloat16 is 205 / 2048."""

BY_NUMPY: dict[str, Callable[[Arrays], Arrays]] = {
    "nearest_neighbours": lambda given: {"V": nearest_neighbours.reference(given["A"], given["X"], 3)},
    "jacobi": lambda given: {"x": jacobi_sweeps(given["A"], given["b"], 16)},
    "chained_matmul": lambda given: {"Y": given["X"] @ given["A"] @ given["B"] @ given["C"]},
    "sobel": lambda given: {"edges": pipeline.reference(given["image"])},
    "struct": lambda given: {"y": np.float32(1.5) * given["x"][10:] + np.float32(0.25)},
    "pointers": lambda given: {"y": given["x"].reshape(3, 100).sum(axis=0) + given["x"][:100]},
    "values": lambda given: {"out": np.array(VALUES, np.float64)},  # noqa: ARG005  there are no inputs
    "histogram": lambda given: {"bins": np.bincount(given["letters"], minlength=256).astype(np.uint32)},
    "collatz": lambda given: {"steps": np.array([collatz_steps(i + 1) for i in range(1000)], np.uint32)},  # noqa: ARG005
    "block_sum": lambda given: {
        "total": given["x"].sum(dtype=np.int32, keepdims=True),
        "partial": padded(given["x"]).sum(axis=1, dtype=np.int32),
    },
    "reverse": lambda given: {"y": given["x"][::-1]},
    "advance": lambda given: {"x": advanced(given["x"], 21)},
}


def test_stored_cases_are_the_ones_written() -> None:
    assert stored.names() == sorted(CASES) == sorted(BY_NUMPY)
    for name, make in CASES.items():
        case, kept = make(), stored.load(name)
        assert kept.task == case.task, "run: make gpu-expected"
        assert (kept.scalars, kept.rtol) == (dict(case.scalars), case.rtol)
        assert_same(kept.inputs, case.inputs, 0)


@pytest.mark.parametrize("name", CASES)
def test_stored_outputs_are_right(name: str) -> None:
    case = stored.load(name)
    assert_same(case.outputs, BY_NUMPY[name](case.inputs), max(case.rtol, 1e-6))


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("name", CASES)
def test_the_software_gpu_gives_the_stored_outputs(name: str) -> None:
    case = stored.load(name)
    outputs = run_local(case.task, case.inputs, scalars=case.scalars, device=kaas.Device("software"))
    assert_same(outputs, case.outputs, case.rtol)
