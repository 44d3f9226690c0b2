"""Code for processors that this machine may not be: with AVX2 and no more, with SSE2 and no more. Right on each, and a
warp whose lanes all run loads and stores whole vectors."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softgpu import examination, machine_code, target
from softgpu.codegen import kernel as codegen
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.harness import HEADER
from softgpu.tests.compiler.random.programs import programs
from softgpu.tests.compiler.random.test_random import check
from softgpu.tests.compiler.random.tree import Program
from softgpu.tests.compiler.test_spans import copied, ptx

PROCESSORS = ("x86-64", "x86-64-v3")
KERNELS = Path(__file__).parents[4] / "benchmarks" / "kernels" / "softgpu.ptx"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors are of the x86-64 kind")


@pytest.fixture(scope="session", params=PROCESSORS)
def gpu(request: pytest.FixtureRequest, runner: ctypes.CDLL, compiled: Path) -> Gpu:
    if request.param == "x86-64-v3" and not target.host().masked_bits:
        pytest.skip("this machine has no AVX2")
    return Gpu(runner, compiled / "plain", processor=target.of(request.param))


@pytest.mark.slow
@pytest.mark.full
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(program=programs())
def test_random_programs(gpu: Any, program: Program) -> None:
    check(gpu, program)
    gpu.forget()


@pytest.mark.parametrize("who", ["all", "guarded", "branched"])
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["b8", "b16", "b32", "b64"]),
    count=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    bits=st.one_of(st.just((1 << 32) - 1), st.integers(0, (1 << 32) - 1)),
)
@example(kind="b32", count=1, stride=1, bits=(1 << 32) - 1)
@example(kind="b32", count=1, stride=1, bits=0x80000001)
def test_lanes_that_lie_close_together(gpu: Any, who: str, kind: str, count: int, stride: int, bits: int) -> None:
    source = np.arange(1, 257).astype(f"u{int(kind[1:]) // 8}")
    out = np.zeros_like(source)
    gpu.run(ptx(kind, count, 32, count * stride, 0, 0, who), "k", 1, 32, source, out, np.uint32(bits))
    np.testing.assert_array_equal(out, copied(source, count, 32, count * stride, 0, 0, who, bits))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 1024])
def test_the_last_warp_runs_in_part(gpu: Any, count: int) -> None:
    a, b = (np.random.default_rng(seed).random(1024, np.float32) for seed in (1, 2))
    c = np.zeros_like(a)
    gpu.run(KERNELS.read_text(), "vector_add", 4, 256, a, b, c, np.uint32(count))
    np.testing.assert_array_equal(c, np.where(np.arange(1024) < count, a + b, 0))


@pytest.mark.parametrize("count", [5, 256, 3000])
def test_a_loop_that_lanes_leave_in_turn(gpu: Any, count: int) -> None:
    x, total = np.arange(count, dtype=np.float32), np.zeros(1, np.float32)
    gpu.run(KERNELS.read_text(), "block_sum", 2, 256, x, total, np.uint32(count))
    assert total[0] == x.sum(dtype=np.float64)


@pytest.mark.parametrize("n", [16, 50])
def test_products_of_matrices_with_a_rest(gpu: Any, n: int) -> None:
    a, b = (np.random.default_rng(seed).random((n, n), np.float32) for seed in (1, 2))
    c = np.zeros_like(a)
    tiles = -(-n // 16)
    gpu.run(KERNELS.read_text(), "sgemm_tiled", (tiles, tiles), (16, 16), a, b, c, np.uint32(n))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_lanes_that_keep_their_old_value_while_others_wait(gpu: Any) -> None:
    """A register that is written in a branch and read behind it, by warps of which all, some or no lanes branch."""
    text = (
        HEADER
        + """
.visible .entry k(.param .u64 out, .param .u32 first) {
.reg .b32 %t, %c, %i, %n, %x, %f; .reg .b64 %o, %w; .reg .pred %p;
mov.u32 %t, %tid.x; mov.u32 %x, 7; ld.param.u32 %f, [first]; setp.lt.u32 %p, %t, %f; mov.u32 %n, 0;
@%p bra behind;
again: add.u32 %x, %x, %t; add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 3; @%p bra again;
behind: ld.param.u64 %o, [out]; mul.wide.u32 %w, %t, 4; add.s64 %o, %o, %w; st.global.u32 [%o], %x; ret;
}"""
    )
    threads = np.arange(96, dtype=np.uint32)
    for first in (0, 1, 32, 40, 96):
        out = np.zeros(96, np.uint32)
        gpu.run(text, "k", 1, 96, out, np.uint32(first))
        np.testing.assert_array_equal(out, np.where(threads < first, 7, 7 + 3 * threads))


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("kernel", ["vector_add", "block_sum"])
def test_a_whole_warp_needs_no_mask(name: str, kernel: str) -> None:
    """In machine code: vectors of floats are loaded as they are, which the guard `i < count` does not hinder."""
    processor = target.of(name)
    _, kernels = examination.examine(KERNELS.read_text())
    code = codegen.generate(kernels[kernel], (256, 1, 1), processor)
    lines = code.text.splitlines()
    assert any("= load <32 x float>, ptr" in line and "align 4" in line for line in lines)
    if kernel == "vector_add":
        assert any(line.startswith("store <32 x float>") and line.endswith("align 4") for line in lines)
    assert machine_code.assemble(code.text, processor)


def test_processors_share_no_compiled_code() -> None:
    assert len({target.of(name).key for name in PROCESSORS} | {target.host().key}) == 3
