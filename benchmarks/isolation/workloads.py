"""The three workloads whose kernels' time under fences has a bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import cutlass_blas
import kaas
from benchmarks.models import MODELS
from kaas.executor.executor import InputSource, RunRequest
from kaas.kernels import library

SIDE, VERTICES, SEARCHES, STEPS = 512, 512, 32, 6


def gemm() -> RunRequest:
    """Return a product of square matrices in float32."""
    a, b, c = (kaas.Buffer(name, (SIDE, SIDE), "float32") for name in "abc")
    inputs = {name: constant(name, random(SIDE, SIDE)) for name in "ab"}
    return RunRequest(kaas.KTask(cutlass_blas.gemm(a, b, c), [c]), inputs, {})


def nearest_neighbours() -> RunRequest:
    """Return the searches of examples/nearest_neighbours.py."""
    code = library("nearest_neighbours")
    a = kaas.Buffer("A", (VERTICES, VERTICES), "float32")
    x, v, difference = (
        kaas.Buffer(name, (VERTICES, SEARCHES), "float32", init=init)
        for name, init in (("X", None), ("V", "zero"), ("difference", None))
    )
    n, k, count = kaas.u32(VERTICES), kaas.u32(SEARCHES), kaas.u32(VERTICES * SEARCHES)
    blocks, tiles = math.ceil(VERTICES * SEARCHES / 256), (math.ceil(SEARCHES / 32), math.ceil(VERTICES / 32))
    kernels = [
        kaas.Kernel(code, "vsub", blocks, 256, [kaas.In(x), kaas.In(v), kaas.Out(difference), count]),
        kaas.Kernel(code, "vadd", blocks, 256, [kaas.InOut(v), kaas.In(x), count]),
        kaas.Kernel(code, "matmul", tiles, (32, 8), [kaas.In(a), kaas.In(difference), kaas.Out(x), n, k, n]),
    ]
    inputs = {"A": constant("A", random(VERTICES, VERTICES)), "X": InputSource(random(VERTICES, SEARCHES))}
    return RunRequest(kaas.KTask(kernels, outputs=[v], iterations=STEPS), inputs, {})


def resnet50() -> RunRequest:
    """Return an inference with a picture."""
    model = MODELS["resnet50"]
    variant = (compiled := model.compiled()).variants[0]
    constants = {buffer.name: constant(buffer.name, compiled.constants[buffer.name]) for buffer in variant.constants}
    pictures = {name: InputSource(value) for name, value in model.inputs().items()}
    return RunRequest(variant.task, {**constants, **pictures}, {})


WORKLOADS: Mapping[str, Callable[[], RunRequest]] = {
    "resnet50": resnet50,
    "gemm": gemm,
    "nearest_neighbours": nearest_neighbours,
}
NEEDED = {"resnet50": ("tvm", "tvm_backend", "onnx")}
"""Packages that a workload needs."""


def random(*shape: int) -> np.ndarray[Any, Any]:
    """Return numbers from 0 to 1, the same ones each time."""
    return np.random.default_rng(1).random(shape, np.float32)


def constant(name: str, value: np.ndarray[Any, Any]) -> InputSource:
    """Return an input that stays on the device."""
    return InputSource(value, key=name.encode(), constants=b"constants")
