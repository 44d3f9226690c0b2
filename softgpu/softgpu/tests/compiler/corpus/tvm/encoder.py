"""A small BERT encoder's sizes and weights, from a seed; and the encoder in NumPy, in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYERS, HIDDEN, HEADS, INNER, WORDS, TOKENS = 2, 64, 4, 128, 19, 50
Floats = NDArray[np.floating[Any]]
erf = np.vectorize(math.erf, otypes=[np.float64])


def weights() -> dict[str, NDArray[np.float32]]:
    """By name; matrices as (outputs, inputs), as linear layers have them."""
    random = np.random.RandomState(0)
    shapes: dict[str, tuple[int, ...]] = {"words": (TOKENS, HIDDEN), "places": (WORDS, HIDDEN)}
    for layer in range(LAYERS):
        for name in ("query", "key", "value", "mix"):
            shapes[f"{layer}.{name}"] = (HIDDEN, HIDDEN)
        shapes |= {f"{layer}.wide": (INNER, HIDDEN), f"{layer}.narrow": (HIDDEN, INNER)}
        for name in ("query", "key", "value", "mix", "narrow", "norm1", "norm2"):
            shapes[f"{layer}.{name}_bias"] = (HIDDEN,)
        shapes |= {f"{layer}.wide_bias": (INNER,), f"{layer}.norm1": (HIDDEN,), f"{layer}.norm2": (HIDDEN,)}
    scale = {name: 1.0 if len(shape) == 1 or "." not in name else shape[1] ** -0.5 for name, shape in shapes.items()}
    return {name: (random.standard_normal(s) * scale[name]).astype(np.float32) for name, s in shapes.items()}


def tokens() -> NDArray[np.int64]:
    return np.random.RandomState(1).randint(0, TOKENS, (1, WORDS))


def norm(x: Floats, scale: Floats, bias: Floats) -> Floats:
    off = x - x.mean(-1, keepdims=True)
    return np.asarray(off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * scale + bias)


def encode(given: NDArray[np.int64]) -> Floats:
    """(1, WORDS) tokens to (1, WORDS, HIDDEN)."""
    w = {name: value.astype(np.float64) for name, value in weights().items()}
    x: Floats = w["words"][given[0]] + w["places"]
    for layer in range(LAYERS):
        at = f"{layer}."

        def linear(name: str, value: Floats, at: str = at) -> Floats:
            return np.asarray(value @ w[at + name].T + w[f"{at}{name}_bias"])

        q, k, v = (linear(name, x).reshape(WORDS, HEADS, -1).transpose(1, 0, 2) for name in ("query", "key", "value"))
        score = q @ k.transpose(0, 2, 1) / math.sqrt(HIDDEN // HEADS)
        power = np.exp(score - score.max(-1, keepdims=True))
        heads = (power / power.sum(-1, keepdims=True)) @ v
        x = norm(
            x + linear("mix", heads.transpose(1, 0, 2).reshape(WORDS, HIDDEN)), w[f"{at}norm1"], w[f"{at}norm1_bias"]
        )
        y = linear("wide", x)
        y = 0.5 * y * (1 + erf(y / math.sqrt(2)))
        x = norm(x + linear("narrow", y), w[f"{at}norm2"], w[f"{at}norm2_bias"])
    return x[None]
