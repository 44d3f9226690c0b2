"""Triton's kernels of networks, against double precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Close, blocks
from softgpu.tests.compiler.corpus.triton.cases import case, erf, sizes

ORDER = Close("sums in another order", atol=2e-6)


def reals(seed: int, *shape: int, within: float = 1.0) -> Array:
    return np.random.RandomState(seed).uniform(-within, within, shape).astype(np.float32)


def like(array: Array, dtype: Any = None) -> Array:
    """Room for a result."""
    return np.full_like(array, 77, dtype)


def softmax_of(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def softmax_in_turn(rows: int, columns: int) -> Case:
    """Rows lie further apart than they are long; what is between stays."""
    x = reals(rows, rows, columns + 3, within=9).astype(np.float16)
    expected = like(x)
    expected[:, :columns] = softmax_of(x[:, :columns]).astype(np.float16)
    args = ["x", "out", *sizes(columns + 3, rows, columns)]
    close = Close("rounded to half", rtol=1e-3, atol=1e-6)
    return case("softmax_in_turn", 5, {"x": x, "out": like(x)}, args, {"out": expected}, close)


def normal(x: Array) -> tuple[Array, Array, Array]:
    """Rows in double precision: normalised, their means and reciprocal deviations."""
    mean = x.mean(1, dtype=np.float64)
    rstd = 1 / np.sqrt(x.var(1, dtype=np.float64) + 1e-5)
    return (x - mean[:, None]) * rstd[:, None], mean.astype(np.float32), rstd.astype(np.float32)


def layer_norm_backward(rows: int, columns: int) -> Case:
    x, dy, weight = reals(1, rows, columns, within=3), reals(2, rows, columns), reals(3, columns)
    v, mean, rstd = normal(x)
    wg = dy.astype(np.float64) * weight
    dx = (wg - v * (v * wg).mean(1)[:, None] - wg.mean(1)[:, None]) * rstd[:, None]
    groups = np.arange(rows)[None, :] % 4 == np.arange(4)[:, None]
    expected = {"dx": dx, "dw": groups @ (dy * v), "db": groups @ dy.astype(np.float64)}
    expected = {name: value.astype(np.float32) for name, value in expected.items()}
    arrays = {"x": x, "dy": dy, "weight": weight, "mean": mean, "rstd": rstd}
    arrays |= {name: np.zeros_like(value) for name, value in expected.items()} | {"locks": np.zeros(4, np.int32)}
    return case("layer_norm_backward", rows, arrays, [*arrays, *sizes(columns)], expected, ORDER)


def grouped_matmul(m: int, n: int, k: int) -> Case:
    a, b = reals(m, m, k), reals(n, k, n)
    product = a.astype(np.float64) @ b.astype(np.float64)
    arrays = {"a": a, "b": b, "c": np.full((m, n), 7, np.float32)}
    expected = {"c": product.astype(np.float32)}
    return case("grouped_matmul", blocks(m, 32) * blocks(n, 32), arrays, [*arrays, *sizes(m, n, k)], expected, ORDER)


def matmul_sums(m: int, n: int) -> Case:
    a, b = reals(m, m, 32).astype(np.float16), reals(n, n, 32).astype(np.float16)
    product = a.astype(np.float64) @ b.astype(np.float64).T
    arrays = {"a": a, "b": b, "c": np.full((m, n), 7, np.float16)}
    close = Close("another order, then rounded to half", rtol=1e-3, atol=1e-6)
    grid, expected = (blocks(m, 8), blocks(n, 8)), {"c": product.astype(np.float16)}
    return case("matmul_sums", grid, arrays, [*arrays, *sizes(m, n)], expected, close)


def causal_attention(heads: int, length: int) -> Case:
    q, k, v = (reals(seed, heads, length, 16, within=2) for seed in (1, 2, 3))
    scores = 0.25 * q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    expected = {"out": (softmax_of(scores) @ v).astype(np.float32)}
    values = [np.int32(length), np.float32(0.25)]
    close = Close("ex2.approx, and another order", atol=2e-6)
    arrays = {"q": q, "k": k, "v": v, "out": like(q)}
    return case("causal_attention", (blocks(length, 32), heads), arrays, [*arrays, *values], expected, close)


def activations(n: int, within: float, *only: str) -> Case:
    x = reals(n, n, within=within)
    with np.errstate(over="ignore"):
        d = x.astype(np.float64)
        results = {
            "gelu": d * (1 + erf(d / np.sqrt(2))) / 2,
            "tanh": np.tanh(d),
            "silu": d / (1 + np.exp(-d)),
            "softplus": np.logaddexp(0, d),
            "power": np.abs(d) ** 1.5 + (np.abs(d) + 1) ** -0.5,
            "trig": np.sin(d) + 2 * np.cos(d),
        }
    arrays = {"x": x, **{name: like(x) for name in results}}
    expected = {name: value.astype(np.float32) for name, value in results.items() if name in only or not only}
    close = Close("approximations, of a few units in the last place", rtol=2e-6, atol=3e-7)
    return case("activations", blocks(n, 128), arrays, [*arrays, *sizes(n)], expected, close)


def cross_entropy(rows: int, classes: int) -> Case:
    random = np.random.RandomState(rows)
    logits, labels = random.uniform(-9, 9, (rows, classes)), random.randint(-1, classes, rows).astype(np.int32)
    probable, known = softmax_of(logits), labels >= 0
    wanted = np.where(np.arange(classes) == labels[:, None], 0.9, 0.0) + 0.1 / classes
    losses = np.where(known, -(wanted * np.log(probable)).sum(1), 0.0)
    gradient = np.where(known[:, None], probable - wanted, 0.0)
    arrays: Arrays = {"logits": logits, "labels": labels, "losses": like(losses), "gradient": like(gradient)}
    expected = {"losses": losses, "gradient": gradient}
    values = [np.int32(classes), np.float64(0.1)]
    return case(
        "cross_entropy", rows, arrays, [*arrays, *values], expected, Close("exp and log of another library", atol=1e-14)
    )


CASES: Cases = {
    "softmax_in_turn": partial(softmax_in_turn, 7, 100),
    "layer_norm_backward": partial(layer_norm_backward, 11, 100),
    "grouped_matmul": partial(grouped_matmul, 100, 71, 50),
    "matmul_sums": partial(matmul_sums, 19, 13),
    **{f"causal_attention_{length}": partial(causal_attention, 3, length) for length in (64, 21)},
    "activations": partial(activations, 300, 6.0),
    "large_angles": partial(activations, 200, 1e7, "trig"),
    **{f"cross_entropy_{classes}": partial(cross_entropy, 9, classes) for classes in (10, 64)},
}
