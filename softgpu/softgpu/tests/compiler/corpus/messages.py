"""Threads that wait for one another."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/messages.ptx"


def relay(symbol: str, grid: int, words: int) -> Case:
    data = np.zeros((grid + 1, words), np.int32)
    data[0] = np.arange(words)
    expected = data.copy()
    for k in range(grid):
        expected[k + 1] = expected[k] * 3 + k
    arrays: Arrays = {"ticket": np.zeros(1, np.int32), "flags": np.zeros(grid + 1, np.int32), "data": data}
    launch = Launch(symbol, grid, 64, [*arrays, np.int32(words)])
    return Case(
        IMAGE, arrays, [launch], {"data": expected, "flags": np.minimum(np.arange(grid + 1), 1).astype(np.int32)}
    )


def last_block(n: int, grid: int) -> Case:
    x = np.random.RandomState(n).randint(-1000, 1000, n).astype(np.int32)
    arrays: Arrays = {
        "x": x,
        "partial": np.zeros(grid, np.int32),
        "done": np.zeros(1, np.uint32),
        "total": np.zeros(1, np.int32),
    }
    total = x.sum(keepdims=True, dtype=np.int32)
    return Case(IMAGE, arrays, [Launch("last_block", grid, 96, [*arrays, np.int32(n)])] * 2, {"total": total})


def orders(n: int) -> Case:
    arrays: Arrays = {"a": np.array([0, 0, 0, n], np.int32), "b": np.zeros(1, np.uint64), "f": np.zeros(1, np.float32)}
    arrays["seen"] = np.zeros(2 * n + 1, np.int32)
    counters = np.array([n, n - 1, np.bitwise_xor.reduce(np.arange(n)), 0], np.int32)
    expected = {"a": counters, "b": np.array([2**64 - 1], np.uint64), "f": np.array([n / 2], np.float32)}
    expected["seen"] = np.concatenate([np.ones(n), [0], np.ones(n)]).astype(np.int32)
    return Case(IMAGE, arrays, [Launch("orders", blocks(n, 64), 64, [*arrays, np.int32(n)])], expected)


def ring(rounds: int) -> Case:
    x = np.random.RandomState(rounds).randint(0, 1000, (rounds, 32)).astype(np.int32)
    launch = Launch("ring", 1, 64, ["x", "out", np.int32(rounds)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, [launch], {"out": 2 * x[:, ::-1]})


def watched() -> Case:
    x = np.random.RandomState(0).randint(1, 1000, (4, 2, 32)).astype(np.int32)
    expected = np.zeros_like(x)
    expected[:, 0] = x[:, 1].reshape(4, 16, 2)[:, :, ::-1].reshape(4, 32)
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, [Launch("watched", 1, 256, ["x", "out"])], {"out": expected})


def lanes_lock(threads: int) -> Case:
    total = 0
    for _ in range(threads):
        total = total * 2 % 1000003 + 1
    arrays: Arrays = {"lock": np.zeros(1, np.int32), "sum": np.zeros(1, np.int32)}
    return Case(
        IMAGE, arrays, [Launch("lanes_lock", 1, threads, ["lock", "sum"])], {"sum": np.array([total], np.int32)}
    )


CASES: Cases = {
    **{symbol: partial(relay, symbol, 20, 100) for symbol in ("relay", "fenced_relay")},
    "last_block": partial(last_block, 1000, 7),
    "orders": partial(orders, 333),
    "ring": partial(ring, 9),
    "watched": watched,
    "lanes_lock": partial(lanes_lock, 50),
}
