"""ResNet-50 as a kTask of the kernels that a model compiler made of it, with weights from a seed."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kaas.graph import KTask
from kaas.library import Library

FOLDER = Path(__file__).parent
PTX = FOLDER / "resnet50.ptx"
LAUNCHES = FOLDER / "resnet50.json"
LOGITS = FOLDER / "resnet50_logits.npy"
EPSILON = np.float32(1e-5)
TRANSPOSED, DEVIATION = ".T", ".deviation"

Array = NDArray[np.float32]


@cache
def ktask() -> KTask:
    """Input "x" (1, 3, 224, 224), output "logits" (1, 1000); its other inputs are the weights, by PyTorch's names."""
    library = Library.from_file(PTX)
    images = [{"kind": image.kind, "data": image.data} for image in library.images]
    return KTask.from_dict(json.loads(LAUNCHES.read_text()) | {"libraries": {library.hash: images}})


def picture() -> Array:
    return np.random.default_rng(50).standard_normal((1, 3, 224, 224), np.float32)


def inputs() -> dict[str, Array]:
    """The picture and all weights."""
    found = {"x": picture()}
    for buffer in ktask().inputs:
        if buffer.name != "x":
            found[buffer.name] = kernel_weight(buffer.name, buffer.shape)
    return found


def kernel_weight(name: str, shape: tuple[int, ...]) -> Array:
    """A weight as the kernels want it: PyTorch's, but for those that compilation folded, which have a suffix."""
    if name.endswith(TRANSPOSED):
        return np.ascontiguousarray(weight(name.removesuffix(TRANSPOSED), shape[::-1]).T)
    if name.endswith(DEVIATION):
        return deviation_of(weight(name.removesuffix(DEVIATION), shape))
    return weight(name, shape)


def deviation_of(variance: Array) -> Array:
    deviation: Array = np.sqrt(variance + EPSILON)
    return deviation


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """One parameter: convolutions that keep the size of what they see, normalisations that do a little."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    spread = rng.standard_normal(shape, np.float32)
    if name.endswith("running_var"):
        return 1 + np.abs(spread) * np.float32(0.2)
    if ".bn" in name or name.startswith("bn") or name.endswith("bias"):
        if not name.endswith("weight"):
            return spread * np.float32(0.1)
        # the last one of a residual branch is small, so that sums do not grow
        return np.float32(0.25 if ".bn3." in name else 1) * (1 + spread * np.float32(0.1))
    return spread * np.float32(np.sqrt(2 / np.prod(shape[1:])))
