"""The output of kernels, wherever the driver puts it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from softgpu.tests.compiler.corpus import device
from softgpu.tests.compiler.corpus.case import Case, Launch

IMAGE = "../kernels/output.ptx"


def check(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines of lanes that part, whole and each once; the number of values printed comes back."""
    at, value = np.arange(90), 2.0**-3
    chosen = (at % 3 == 1) & (at < 70)
    launches = [Launch("lanes", 2, 45, ["results", np.int32(70)])]
    launches += [Launch("reals", 1, 1, [np.float32(value), np.float64(-value)]), Launch("twice", 1, 1, [np.int32(4)])]
    arrays = {"results": np.zeros(90, np.int32)}
    case = Case(IMAGE, arrays, launches, {"results": np.where(chosen, 2, 0).astype(np.int32)})
    capfd.readouterr()
    case.check(device.run(case))
    ctypes.CDLL(None).fflush(None)  # a GPU's driver prints to C's stdout
    expected = [f"thread {i}: {i * i}" for i in np.flatnonzero(chosen)] + [f"told by {i}" for i in (0, 1, -1, 2, 3, -3)]
    expected.append(f"{value:f}|{-value:e}|{-value:g}|{value:10.3f}|{-value:<10.2e}|{value:G}")
    assert sorted("".join(capfd.readouterr()).splitlines()) == sorted(expected)
