"""memcheck sees every access: kernels touch their matrices and nothing outside of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softgpu import MEMCHECK_VARIABLE

ROOT = Path(__file__).parents[2]

PROGRAM = """
from dataclasses import replace

import cutlass_blas
import numpy as np

import kaas
from tests.libraries.harness import multiply, place, random_values

rng = np.random.default_rng(0)


def product(m, n, k, ops="nn", pad=0, count=None, dtype="float32", **options):
    lead = () if count is None else (count,)
    shapes = (m, k) if ops[0] == "n" else (k, m), (k, n) if ops[1] == "n" else (n, k), (m, n)
    a, b, c = (random_values(rng, (*lead, *shape), dtype) for shape in shapes)
    given = [place(name, values, pad=pad) for name, values in zip("abc", (a, b, c))]
    found = multiply(*given, trans_a=ops[0], trans_b=ops[1], **options)
    wide = [np.swapaxes(one, -1, -2) if op == "t" else one for one, op in zip((a, b), ops)]
    expected = wide[0] @ wide[1] + options.get("beta", 0) * c
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


product(1, 1, 1)
product(65, 63, 9)
product(65, 67, 17, "nt", beta=1)
product(3, 130, 33, pad=1, beta=-1)
product(5, 7, 11, "nt", count=3)
product(31, 33, 300, split_k=3, beta=1)
product(2, 0, 5)
product(2, 3, 0, beta=2)
print("all right")

# a kernel whose parameters have one row more than its buffers
x, y, z = (kaas.Buffer(name, (64, 64), "float32") for name in "xyz")
taller = [kaas.Buffer(one.name, (65, 64), "float32") for one in (x, z)]
(kernel,) = cutlass_blas.gemm(taller[0], y, taller[1])
(params,) = kernel.args
own = {"x": x, "y": y, "z": z}
again = {at: type(access)(own[access.buffer.name], access.offset_bytes) for at, access in params.pointers}
lying = kaas.Kernel(
    kernel.library, kernel.symbol, kernel.grid, kernel.block, [kaas.Struct(params.blob, again)], kernel.shared_bytes
)
ones = np.ones((64, 64), np.float32)
try:
    kaas.run_local(kaas.KTask([lying], ["z"]), {"x": ones, "y": ones})
except kaas.KaasError as error:
    print("seen:", error)
"""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Return the lines that the program prints, in another process, where every kernel is compiled with checks."""
    environment = os.environ | {MEMCHECK_VARIABLE: "1"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.full
def test_products_touch_their_own_memory_only(lines: list[str]) -> None:
    assert lines[0] == "all right"


def test_a_row_too_many_would_have_been_seen(lines: list[str]) -> None:
    assert lines[1].startswith("seen: ")
    assert "behind the end of the nearest buffer" in lines[1]
