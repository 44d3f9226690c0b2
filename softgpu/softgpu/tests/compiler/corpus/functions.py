"""Local arrays, module variables, constants and calls."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Close, Launch, blocks

IMAGE = "cuda/functions.ptx"
TABLES = "cuda/call_tables.ptx"


def sort_rows(rows: int) -> Case:
    x = np.random.RandomState(rows).randint(-50, 50, (rows, 24)).astype(np.int32)
    launch = Launch("sort_rows", blocks(rows, 64), 64, ["x", "out", np.int32(rows)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, [launch], {"out": np.sort(x, 1)})


def quicksort(threads: int, length: int) -> Case:
    x = np.random.RandomState(length).randint(0, 2 * length, (threads, length)).astype(np.float32)
    return Case(IMAGE, {"x": x}, [Launch("quicksort", 1, threads, ["x", np.int32(length)])], {"x": np.sort(x, 1)})


PROGRAM = [
    1, 9, 2, 7, 4, 2, 3, 3,  # 7 (x & 1) + 3
    1, 10, 7, 2, 1, 3, 7, 6, 8, 9,  # and 1 for each half of x until nothing is left; the loop begins at 9
    11, 3, 0,
]  # fmt: skip


def execute(x: int) -> int:
    """Return the result of `machine` for PROGRAM."""
    stack: list[int] = []
    at = steps = 0
    while PROGRAM[at]:
        steps, op, at = steps + 1, PROGRAM[at], at + 1
        match op:
            case 1:
                stack.append(x)
            case 2:
                stack.append(PROGRAM[at])
                at += 1
            case 3 | 4 | 5:
                b, a = stack.pop(), stack.pop()
                stack.append({3: a + b, 4: a * b, 5: a - b}[op])
            case 6:
                stack.append(stack[-1])
            case 7:
                stack[-2:] = stack[:-3:-1]
            case 8:
                at = PROGRAM[at] if stack.pop() > 0 else at + 1
            case 9:
                stack[-1] &= 1
            case 10:
                stack[-1] >>= 1
            case _:
                stack[-1] = -stack[-1]
    return stack[-1] * 1000 + steps + 1


def machine(n: int) -> Case:
    x = np.random.RandomState(n).randint(0, 1000, n).astype(np.int32)
    arrays: Arrays = {"program": np.array(PROGRAM, np.uint8), "x": x, "out": np.zeros_like(x)}
    launch = Launch("machine", blocks(n, 32), 32, ["program", "x", "out", np.int32(n)])
    return Case(IMAGE, arrays, [launch], {"out": np.array([execute(int(v)) for v in x], np.int32)})


def variables(n: int) -> Case:
    """Variables keep their values from launch to launch of one load."""
    pick = np.random.RandomState(n).randint(0, 256, n).astype(np.uint8)
    fibonacci = np.array([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987])
    length = np.array([len("zero"), len("eleven"), len("twenty-two")])
    expected = (
        np.array([0.5, -1.25, 3])[pick % 3] + fibonacci[pick & 15] * 1.5 - 0.25 + ord("k") + 1e4 * length[pick % 3]
    )
    marks = np.zeros(256, np.uint8)
    marks[pick] = 1
    seen = np.append(np.packbits(marks, bitorder="little").view(np.int32), np.int32(5 + 2 * n))
    arrays: Arrays = {"pick": pick, "out": np.zeros(n), "seen": np.zeros(9, np.int32)}
    args = ["pick", "out", "seen", np.int32(n)]
    launches = [Launch("variables", blocks(n, 128), 128, args), Launch("variables", 1, 512, args)]
    return Case(IMAGE, arrays, launches, {"out": expected, "seen": seen})


def functions(n: int) -> Case:
    x = np.random.RandomState(n).uniform(-2, 2, n).astype(np.float32)
    c, i = np.array([0.5, -1, 0.25, 2, 1], np.float32), np.arange(n)
    out = np.array([np.polyval(c[: 2 + k % 4][::-1].astype(float), float(v)) for k, v in enumerate(x)], np.float32)
    sums = np.where(i & 1, x.astype(np.float64) + 2.5 + i * 3, x.astype(np.float64) * 2.5)
    gcd = np.array([math.gcd(k * 6 + 6, 84) for k in i], np.int32)
    arrays: Arrays = {"x": x, "c": c, "out": np.zeros_like(x), "sums": np.zeros(n), "gcd": np.zeros(n, np.int32)}
    launch = Launch("functions", blocks(n, 64), 64, [*arrays, np.int32(n)])
    expected = {"out": out, "sums": sums, "gcd": gcd}
    return Case(IMAGE, arrays, [launch], expected, Close("products are fused into sums", atol=3e-7))


def call_table(n: int) -> Case:
    random = np.random.RandomState(n)
    op, a, b = (random.randint(low, 9, n).astype(np.int32) for low in (0, -9, -9))
    a[:40], op[:32] = 3, 2  # a warp that agrees
    choices = [a + b, a - b, a * b, a ** (b & 7)]
    arrays: Arrays = {"op": op, "a": a, "b": b, "out": np.zeros_like(a)}
    launch = Launch("call_table", blocks(n, 64), 64, [*arrays, np.int32(n)])
    return Case(TABLES, arrays, [launch], {"out": np.choose(op & 3, choices).astype(np.int32)})


def virtual_calls(n: int) -> Case:
    x = np.random.RandomState(n).randint(0, 100, n).astype(np.float32)
    expected = np.where(x.astype(int) & 1, 2 * x, 3 * x * x) + np.where(np.arange(n) & 1, 4, 0)
    arrays: Arrays = {"x": x, "out": np.zeros_like(x)}
    launch = Launch("virtual_calls", blocks(n, 64), 64, ["x", "out", np.int32(n)])
    return Case(TABLES, arrays, [launch], {"out": expected.astype(np.float32)})


CASES: Cases = {
    **{f"sort_rows_{n}": partial(sort_rows, n) for n in (1, 100)},
    "quicksort": partial(quicksort, 70, 90),
    "machine": partial(machine, 77),
    "variables": partial(variables, 333),
    "functions": partial(functions, 150),
}
CALL_TABLES: Cases = {"pointers": partial(call_table, 200), "virtual_calls": partial(virtual_calls, 99)}
"""Apart from the others, because these calls are a matter of their own."""
