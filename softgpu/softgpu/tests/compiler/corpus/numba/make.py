"""`python -m softgpu.tests.compiler.corpus.numba.make`: PTX of the kernels. Needs numba-cuda and a CUDA toolkit."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import softgpu

softgpu.load()  # device functions are compiled for the device that there is

import numba_cuda  # noqa: E402
import numpy as np  # noqa: E402
from numba import cuda, from_dtype, types  # noqa: E402
from numba.cuda.random import xoroshiro128p_dtype  # noqa: E402

from softgpu.tests.compiler.corpus.numba import kernels  # noqa: E402
from softgpu.tests.compiler.corpus.numba.records import PARTICLE  # noqa: E402

HERE = Path(__file__).parent
F, D, I, L, U = types.float32, types.float64, types.int32, types.int64, types.uint32  # noqa: E741
WANTED: dict[str, tuple[Any, ...]] = {
    "strided": (F[:], F[:, :], F[:], F),
    "block_sum": (D[::1], D[::1]),
    "matmul": (F[:, ::1], F[:, :], F[:, ::1]),
    "functions": (F[::1], D[::1], F[:, ::1], D[:, ::1]),
    "integers": (I[::1], I[::1], L[:, ::1]),
    "devices": (L[::1], L[::1], types.boolean[::1]),
    "local_sort": (I[:, ::1],),
    "atomics": (I[::1], I[::1], D[:, ::1], I[::1], U[::1]),
    "warps": (I[::1], I[:, ::1]),
    "complexes": (types.complex64[::1], types.complex64, I[::1], types.complex64[::1]),
    "dynamic": (I[::1], I[::1]),
    "records": (from_dtype(PARTICLE)[::1], F[::1], F),
    "random_numbers": (from_dtype(np.dtype(xoroshiro128p_dtype))[::1], D[:, ::1], F[:, ::1]),
}


def main() -> int:
    about: dict[str, Any] = {"numba-cuda": numba_cuda.__version__, "symbols": {}}
    for name, signature in WANTED.items():
        text, _ = cuda.compile(getattr(kernels, name), types.void(*signature), device=False, abi="numba", cc=(8, 0))
        (HERE / f"{name}.ptx").write_text(text)
        (symbol,) = re.findall(r"\.entry\s+(\w+)", text)
        about["symbols"][name] = symbol
        print(name, len(text))
    (HERE / "kernels.json").write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
