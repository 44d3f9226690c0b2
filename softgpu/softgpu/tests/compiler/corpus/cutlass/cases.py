"""CUTLASS's matrix products: D = alpha A B + beta C, launched with parameters made beforehand."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from softgpu.tests.compiler.corpus.case import HERE, Arrays, Case, Cases, Close, Launch, Struct

LAUNCHES = json.loads((HERE / "cutlass" / "launches.json").read_text())
DTYPES: dict[str, Any] = {"cgemm": np.complex64, "dgemm": np.float64}
FACTORS: dict[str, Any] = {"hgemm": np.float16}


def product(name: str, launch: dict[str, Any]) -> Case:
    m, n, k = launch["size"]
    dtype, random = np.dtype(DTYPES.get(name, np.float32)), np.random.RandomState(m)

    def matrix(rows: int, columns: int) -> Any:
        x = random.standard_normal((rows, columns)) + 1j * random.standard_normal((rows, columns))
        return (x if dtype.kind == "c" else x.real).astype(dtype)

    kind = FACTORS.get(name, dtype)
    a, b, c = matrix(m, k).astype(kind), matrix(k, n).astype(kind), matrix(m, n)
    imaginary = 0.5j if dtype.kind == "c" else 0
    alpha, beta = LAUNCHES["alpha"] + imaginary, LAUNCHES["beta"] + imaginary
    expected = (alpha * (a.astype(np.complex128) @ b) + beta * c).astype(np.complex128)
    turned = name.endswith("tt")
    arrays: Arrays = {"a": a.T if turned else a, "b": b.T if turned else b, "c": c, "d": np.full_like(c, -7)}
    params = Struct(bytes.fromhex(launch["params"]), dict(zip(launch["pointers"], "abcd", strict=True)))
    call = Launch(name, tuple(launch["grid"]), launch["threads"], [params], launch["shared_bytes"])
    result = expected.astype(dtype) if dtype.kind == "c" else expected.real.astype(dtype)
    tolerance = Close("another order of the sum", atol=4 * k * float(np.finfo(dtype).eps))
    return Case(f"cutlass/{name}.ptx", arrays, [call], {"d": result}, tolerance)


CASES: Cases = {
    f"{name}_{'x'.join(map(str, launch['size']))}": partial(product, name, launch)
    for name, launches in LAUNCHES["launches"].items()
    for launch in launches
}
