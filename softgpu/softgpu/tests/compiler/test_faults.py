"""Kernels that touch unallocated memory: the launch fails with the place of the access, and the process continues."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]

STORE = (
    HEADER
    + """
.visible .entry store(.param .u64 at, .param .u32 bad)
{
    .reg .b32 %r<4>;
    .reg .b64 %p;
    .reg .pred %q;
    ld.param.u64 %p, [at];
    ld.param.u32 %r1, [bad];
    mov.u32 %r2, %ctaid.x;
    bar.sync 0;
    setp.ne.u32 %q, %r1, %r2;
    @%q bra DONE;
    st.global.u32 [%p], %r2;
DONE:
    ret;
}
"""
)


@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (1, 256), (40_000, 64)])
def test_the_error_of_a_bad_store_has_its_place(gpu: Any, blocks: int, threads: int) -> None:
    bad = blocks - 1
    gpu.know((0x2000, 256))
    place = rf"block \({bad}, 0, 0\), warp \d+: 0x1000, 4096 bytes before the nearest buffer \(256 bytes at 0x2000\)"
    with pytest.raises(RuntimeError, match=f"700: illegal access in {place}"):
        gpu.run(STORE, "store", blocks, threads, np.uint64(0x1000), np.uint32(bad))
    target = np.zeros(1, np.uint32)
    gpu.run(STORE, "store", blocks, threads, target, np.uint32(bad))
    assert target[0] == bad


def test_an_address_that_no_processor_has(gpu: Any) -> None:
    with pytest.raises(RuntimeError, match=r"700: .*no valid address"):
        gpu.run(STORE, "store", 1, 32, np.uint64(1 << 63), np.uint32(0))


def test_behind_and_inside_the_nearest_buffer(gpu: Any) -> None:
    gpu.know((0x100, 256))
    with pytest.raises(RuntimeError, match="3584 bytes behind the end of the nearest buffer"):
        gpu.run(STORE, "store", 1, 32, np.uint64(0x1000), np.uint32(0))
    gpu.know()
    with pytest.raises(RuntimeError, match="there is no device memory"):
        gpu.run(STORE, "store", 1, 32, np.uint64(0x1000), np.uint32(0))


@pytest.mark.processes
@pytest.mark.parametrize("order", ["first", "last", "twice"])
def test_other_crashes_are_passed_to_other_handlers(runner: ctypes.CDLL, tmp_path: Path, order: str) -> None:
    """Python's faulthandler, installed before or after the first launch, still reports a crash that is Python's."""
    code = f"""
import ctypes, faulthandler, pathlib, time
import numpy as np
from softgpu.tests.compiler.conftest import Gpu, load_runner
from softgpu.tests.compiler.test_faults import STORE
gpu = Gpu(load_runner({runner._name!r}), pathlib.Path({str(tmp_path)!r}))
def fault():
    try:
        gpu.run(STORE, "store", 1, 32, np.uint64(0x1000), np.uint32(0))
    except RuntimeError as error:
        print(error, flush=True)
if {order != "last"}:
    faulthandler.enable()
fault()
if {order != "first"}:
    faulthandler.enable()
    until = time.monotonic() + 0.1
    while time.monotonic() < until:  # a launch notices within 10 ms
        gpu.run(STORE, "store", 1, 32, np.uint64(0), np.uint32(7))
    fault()
ctypes.string_at(8)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == -11, done.stderr
    assert done.stdout.count("700: illegal access") == (1 if order == "first" else 2), done.stderr
    assert "Segmentation fault" in done.stderr
    assert "ctypes" in done.stderr


@pytest.mark.parametrize("offset", [1 << 20, -(1 << 20), -(1 << 31), (1 << 31) - 4])
def test_outside_shared_memory(gpu: Any, offset: int) -> None:
    text = (
        HEADER
        + """
.visible .entry k(.param .u32 offset)
{
    .reg .b32 %r<3>;
    .shared .align 4 .b8 tile[32];
    ld.param.u32 %r1, [offset];
    st.shared.u32 [%r1], %r1;
    ret;
}
"""
    )
    with pytest.raises(RuntimeError, match="700: illegal access in block"):
        gpu.run(text, "k", 1, 32, np.int32(offset))
