"""Models by hand that run: of the kernels of tests/api/kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import kaas
from tests.api.conftest import STEPS, numbers

WIDTH = 256
LARGEST = 8
W, V = (numbers(LARGEST * WIDTH, seed).reshape(LARGEST, WIDTH) for seed in (1, 2))


def variant(batch: int) -> kaas.Variant:
    """sum = x + w; more = x + x, or x + v for the largest batch. No kernel reads the mask."""
    x, added, more = (kaas.Buffer(name, (batch, WIDTH), "float32") for name in ("x", "sum", "more"))
    w, v = (kaas.Buffer(name, (LARGEST, WIDTH), "float32") for name in "wv")
    n, other = kaas.i32(batch * WIDTH), v if batch == LARGEST else x
    first = kaas.Kernel(STEPS, "add", batch, WIDTH, [kaas.In(x), kaas.In(w), kaas.Out(added), n])
    second = kaas.Kernel(STEPS, "add", batch, WIDTH, [kaas.In(x), kaas.In(other), kaas.Out(more), n])
    task = kaas.KTask([first, second], [added, more], name=f"adder-{batch}")
    return kaas.Variant(task, (x, kaas.Buffer("mask", batch, "bool")))


def adder(*batches: int) -> kaas.CompiledModel:
    constants = {"w": W, "v": V} if LARGEST in batches else {"w": W}
    return kaas.CompiledModel("adder", map(variant, batches), constants, {"compiler": "none"})


def inputs(batch: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    return {"x": numbers(batch * WIDTH, seed).reshape(batch, WIDTH), "mask": np.zeros(batch, np.bool_)}


def expected(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return x + W[: len(x)], x + (V if len(x) == LARGEST else x)


def doubler(*batches: int) -> kaas.CompiledModel:
    """One input, one output, no constants."""

    def variant(batch: int) -> kaas.Variant:
        x, y = (kaas.Buffer(name, (batch, WIDTH), "float32") for name in "xy")
        n = kaas.i32(batch * WIDTH)
        kernel = kaas.Kernel(STEPS, "add", batch, WIDTH, [kaas.In(x), kaas.In(x), kaas.Out(y), n])
        return kaas.Variant(kaas.KTask([kernel], [y], name=f"doubler-{batch}"), (x,))

    return kaas.CompiledModel("doubler", map(variant, batches), {})


def crasher() -> kaas.CompiledModel:
    """Of two variants one ends its device."""
    x, fine, bad = kaas.Buffer("x", 1), kaas.Buffer("out", 1, "uint32"), kaas.Buffer("out", 1, "int32")
    spin = kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(fine), kaas.i64(10)])], [fine], name="fine")
    crash = kaas.KTask([kaas.Kernel(STEPS, "crash", 1, 1, [kaas.Out(bad)])], [bad], name="crash")
    variants = [kaas.Variant(spin, (x,)), kaas.Variant(crash, (kaas.Buffer("x", 2),))]
    return kaas.CompiledModel("crasher", variants, {})
