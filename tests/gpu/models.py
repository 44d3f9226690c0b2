"""Small compiled models in files: a machine with a GPU runs them without TVM.

`python -m tests.gpu.models` makes the files again, where TVM is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

FOLDER = Path(__file__).parent / "compiled"
SIDE, CHANNELS, HIDDEN, CLASSES = 8, 8, 48, 10
INPUTS = {"dense": (4, 32), "pictures": (2, 3, SIDE, SIDE)}
"""Shapes of the input "x"."""


def data(seed: int, *shape: int) -> Array:
    """Return floats from -1 to 1. NumPy never changes RandomState's stream."""
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)


def weights(name: str) -> dict[str, Array]:
    if name == "dense":
        return {
            "first.weight": data(1, HIDDEN, 32), "first.bias": data(2, HIDDEN),
            "last.weight": data(3, CLASSES, HIDDEN), "last.bias": data(4, CLASSES),
        }  # fmt: skip
    return {
        "first.weight": data(5, CHANNELS, 3, 3, 3), "first.bias": data(6, CHANNELS),
        "last.weight": data(7, CLASSES, CHANNELS * SIDE * SIDE), "last.bias": data(8, CLASSES),
    }  # fmt: skip


def inputs(name: str) -> Array:
    return data(9, *INPUTS[name])


def expected(name: str) -> Array:
    """Return softmax(last(relu(first(x)))), computed by NumPy."""
    given, x = weights(name), inputs(name).astype(np.float64)
    if name == "dense":
        first = x @ given["first.weight"].T + given["first.bias"]
    else:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        first = np.einsum("ncyxij,ocij->noyx", seen, given["first.weight"]) + given["first.bias"][:, None, None]
    scores = np.maximum(first, 0).reshape(len(x), -1) @ given["last.weight"].T + given["last.bias"]
    likely = np.exp(scores - scores.max(1, keepdims=True))
    result: Array = (likely / likely.sum(1, keepdims=True)).astype(np.float32)
    return result


def network(name: str) -> Any:
    """Return the same model for TVM."""
    from tvm.relax.frontend import nn

    class Network(nn.Module):  # type: ignore[misc]  # TVM has no types
        def __init__(self) -> None:
            if name == "dense":
                self.first = nn.Linear(32, HIDDEN)
            else:
                self.first = nn.Conv2D(3, CHANNELS, 3, padding=1, bias=True)
            self.last = nn.Linear(HIDDEN if name == "dense" else CHANNELS * SIDE * SIDE, CLASSES)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            hidden = nn.op.relu(self.first(x))
            return nn.op.softmax(self.last(nn.op.reshape(hidden, (INPUTS[name][0], -1))), axis=-1)

    made = Network()
    for parameter, value in weights(name).items():
        dict(made.named_parameters())[parameter].data = value
    return made


def main() -> int:
    import tvm_backend

    FOLDER.mkdir(exist_ok=True)
    for name in INPUTS:
        path = FOLDER / f"{name}.kaas"
        tvm_backend.compile(network(name), {"x": inputs(name)}, target="sm_80+sm_90+ptx", name=name).save(path)
        print(f"{name:<24} {path.stat().st_size:>8,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
