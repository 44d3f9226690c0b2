"""Every kernel that TVM makes of a BERT encoder, in the order of the encoder: its result is PyTorch's, and NumPy's."""

from __future__ import annotations

import json

import numpy as np

from softgpu.tests.compiler.corpus.case import HERE, Arrays, Case, Cases, Close, Launch
from softgpu.tests.compiler.corpus.tvm import encoder

ENCODER = json.loads((HERE / "tvm" / "encoder.json").read_text())


def buffers() -> Arrays:
    """Return the contents of device memory before the first launch."""
    weights, made = encoder.weights(), {}
    for name, about in ENCODER["buffers"].items():
        if "weight" in about:
            value = weights[about["weight"]]
            made[name] = np.ascontiguousarray(value.T if about["turned"] else value).reshape(about["shape"])
        else:
            made[name] = np.full(about["shape"], about.get("value", 0), about["dtype"])
    return made | {"tokens": encoder.tokens()}


def bert() -> Case:
    launches = [
        Launch(*(one[key] for key in ("symbol", "grid", "block", "args", "shared_bytes")))
        for one in ENCODER["launches"]
    ]
    torch = np.load(HERE / "tvm" / "encoder.npy")
    np.testing.assert_allclose(torch, encoder.encode(encoder.tokens()), rtol=0, atol=1e-5)
    tolerance = Close("sums in single precision in another order, through two layers", atol=1e-5)
    return Case("tvm/encoder.ptx", buffers(), launches, {ENCODER["output"]: torch}, tolerance)


CASES: Cases = {"bert": bert}
