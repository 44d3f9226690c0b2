"""kTasks on which a GPU and the software GPU must agree, with their inputs; `expected.py` stores them with outputs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kaas
from examples import chained_matmul, jacobi, nearest_neighbours, pipeline

LIBRARY = kaas.Library.from_file(Path(__file__).parent / "kernels" / "cases.ptx")

Inputs = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A kTask with its inputs. rtol: allowed difference of results, as a share of the largest; 0: equal bits."""

    task: kaas.KTask
    inputs: Inputs
    scalars: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 0.0


def data(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return floats from -1 to 1. NumPy never changes RandomState's stream, so stored cases stay comparable."""
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)


def kernel(symbol: str, grid: int, block: int, *args: Any, shared_bytes: int = 0) -> kaas.Kernel:
    return kaas.Kernel(LIBRARY, symbol, grid, block, args, shared_bytes)


def of_nearest_neighbours() -> Case:
    a = np.abs(data(1, 96, 96)) / 48
    return Case(nearest_neighbours.build(96, 20, 3), {"A": a, "X": data(2, 96, 20)}, rtol=1e-6)


def of_jacobi() -> Case:
    a = np.abs(data(3, 64, 64)) + 64 * np.eye(64, dtype=np.float32)
    return Case(jacobi.build(64), {"A": a, "b": data(4, 64)}, {"passes": 8}, rtol=1e-14)


def of_chained_matmul() -> Case:
    return Case(chained_matmul.build(72), {name: data(seed, 72, 72) for seed, name in enumerate("XABC")}, rtol=1e-6)


def of_sobel() -> Case:
    return Case(pipeline.build(50, 70), {"image": data(5, 50, 70)}, rtol=1e-6)


def of_struct() -> Case:
    """Pointer and scalar fields of a struct, one of them at an offset into its buffer."""
    x, y = kaas.Buffer("x", 110, "float32"), kaas.Buffer("y", 100, "float32")
    blob = struct.pack("<Qf4xQd", 0, 0.0, 0, 0.25)
    params = kaas.Struct(blob, {0: kaas.In(x, 40), 16: kaas.Out(y)}, {8: kaas.Scalar("scale", "f32")}, align=8)
    return Case(kaas.KTask([kernel("affine", 4, 32, params, kaas.u32(100))], [y]), {"x": data(6, 110)}, {"scale": 1.5})


def of_pointers() -> Case:
    """A table of pointers whose entries lie in an input, in a temporary and twice in one buffer."""
    x, t, y = kaas.Buffer("x", 300, "float32"), kaas.Buffer("t", 100, "float32"), kaas.Buffer("y", 100, "float32")
    first = kaas.Pointers([kaas.In(x), kaas.In(x, 400), kaas.In(x, 800)])
    second = kaas.Pointers([kaas.In(t), kaas.In(x)])
    kernels = [
        kernel("add_rows", 4, 32, first, kaas.u32(3), kaas.Out(t), kaas.u32(100)),
        kernel("add_rows", 4, 32, second, kaas.u32(2), kaas.Out(y), kaas.u32(100)),
    ]
    return Case(kaas.KTask(kernels, [y]), {"x": data(7, 300)})


def of_values() -> Case:
    """Every kind of literal, at the offsets that the kernel's compiler chose."""
    out = kaas.Buffer("out", 18, "float64")
    values = [
        kaas.i8(-128), kaas.i16(-32768), kaas.i32(-(2**31)), kaas.i64(-(2**53)), kaas.u8(255), kaas.u16(65535),
        kaas.u32(2**32 - 1), kaas.u64(2**53), kaas.f16(0.1), kaas.bf16(0.1), kaas.f32(0.1), kaas.f64(0.1),
        kaas.c64(1 - 2j), kaas.c128(3 + 4j), kaas.boolean(True), kaas.Null,
    ]  # fmt: skip
    return Case(kaas.KTask([kernel("values", 1, 32, *values, kaas.Out(out))], [out]), {})


def of_histogram() -> Case:
    """Atomics on a buffer that starts as zeros."""
    letters = kaas.Buffer("letters", 5000)
    bins = kaas.Buffer("bins", 256, "uint32", init="zero")
    task = kaas.KTask([kernel("histogram", 3, 256, kaas.In(letters), kaas.InOut(bins), kaas.u32(5000))], [bins])
    return Case(task, {"letters": np.random.RandomState(8).binomial(255, 0.4, 5000).astype(np.uint8)})


def of_collatz() -> Case:
    steps = kaas.Buffer("steps", 1000, "uint32")
    return Case(kaas.KTask([kernel("collatz", 8, 128, kaas.Out(steps), kaas.u32(1000))], [steps]), {})


def of_block_sum() -> Case:
    """Two levels of reduction; the second one reads the results of the first one's blocks."""
    n, x = 20_000, kaas.Buffer("x", 20_000, "int32")
    partial, total = kaas.Buffer("partial", 40, "int32"), kaas.Buffer("total", 1, "int32")
    kernels = [
        kernel("block_sum", 40, 512, kaas.In(x), kaas.Out(partial), kaas.u32(n)),
        kernel("block_sum", 1, 128, kaas.In(partial), kaas.Out(total), kaas.u32(40)),
    ]
    numbers = np.random.RandomState(9).randint(-(2**31), 2**31 - 1, n, np.int64).astype(np.int32)
    return Case(kaas.KTask(kernels, [total, partial]), {"x": numbers})


def of_reverse() -> Case:
    """64 KiB of dynamic shared memory: more than the default limit of a kernel."""
    n = 1 << 14
    x, y = kaas.Buffer("x", n, "float32"), kaas.Buffer("y", n, "float32")
    task = kaas.KTask([kernel("reverse", 1, 256, kaas.In(x), kaas.Out(y), kaas.u32(n), shared_bytes=4 * n)], [y])
    return Case(task, {"x": np.arange(n, dtype=np.float32)})


def of_advance() -> Case:
    """In place from the middle on, with iterations that the invocation chooses."""
    x = kaas.Buffer("x", 100, "uint32")
    task = kaas.KTask([kernel("advance", 2, 32, kaas.InOut(x, 200), kaas.u32(50))], [x], kaas.Scalar("n", "i64"))
    return Case(task, {"x": np.arange(100, dtype=np.uint32)}, {"n": 21})


CASES: dict[str, Callable[[], Case]] = {
    "nearest_neighbours": of_nearest_neighbours,
    "jacobi": of_jacobi,
    "chained_matmul": of_chained_matmul,
    "sobel": of_sobel,
    "struct": of_struct,
    "pointers": of_pointers,
    "values": of_values,
    "histogram": of_histogram,
    "collatz": of_collatz,
    "block_sum": of_block_sum,
    "reverse": of_reverse,
    "advance": of_advance,
}
