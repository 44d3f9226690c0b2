"""The bytes that checked code reports: all that it touches, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.conftest import Touched
from softgpu.tests.compiler.test_memcheck import text

READ, WRITE, UPDATE = range(3)


def touched(gpu: Any, ptx: str, array: np.ndarray, number: int = 0, **shape: Any) -> list[set[int]]:
    """The offsets in array that a launch reads, writes and updates."""
    seen = Touched()
    gpu.run(ptx, "k", shape.get("grid", 1), shape.get("block", 32), array, np.uint32(number), touched=seen)
    assert not seen.incomplete
    return [{at - array.ctypes.data for at in seen.bytes_of(verb)} for verb in (READ, WRITE, UPDATE)]


def every(step: int, count: int, width: int = 4) -> set[int]:
    return {i * step + byte for i in range(count) for byte in range(width)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ld.global.u32 %x1, [%a];", [every(4, 32), set(), set()]),
        ("st.global.u32 [%a], %t;", [set(), every(4, 32), set()]),
        ("st.u8 [%a], %t;", [set(), every(4, 32, 1), set()]),
        ("st.global.u16 [%a+2], %t;", [set(), {at + 2 for at in every(4, 32, 2)}, set()]),
        ("atom.global.add.u32 %x1, [%a], 1;", [set(), set(), every(4, 32)]),
        ("ld.global.v4.u32 {%x0, %x1, %x2, %x3}, [%p];", [set(range(16)), set(), set()]),
    ],
)
def test_one_access(checked_gpu: Any, line: str, expected: list[set[int]]) -> None:
    assert touched(checked_gpu, text(line), np.zeros(64, np.uint32)) == expected


def test_lanes_that_do_not_run_touch_nothing(checked_gpu: Any) -> None:
    lines = "setp.lt.u32 %q, %t, %x4;", "@%q st.global.u32 [%a], %t;"
    assert touched(checked_gpu, text(*lines), np.zeros(64, np.uint32), 5) == [set(), every(4, 5), set()]


def test_blocks_on_all_cores(checked_gpu: Any) -> None:
    """Strided, so that nothing joins, and far enough for many pages and several threads."""
    lines = "mul.wide.u32 %o, %t, 12; add.s64 %a, %p, %o;", "st.global.u32 [%a], %t;"
    array = np.zeros(3 * 64 * 256, np.uint32)
    assert touched(checked_gpu, text(*lines), array, grid=64, block=256) == [set(), every(12, 64 * 256), set()]


def test_shared_memory_and_parameters_are_the_launchs_own(checked_gpu: Any) -> None:
    lines = ".shared .b32 mine[32];", "mov.u64 %o, mine;", "st.shared.u32 [%o], %t;", "ld.shared.u32 %x1, [%o];"
    assert touched(checked_gpu, text(*lines), np.zeros(64, np.uint32)) == [set(), set(), set()]


def test_the_next_launch_begins_anew(checked_gpu: Any) -> None:
    array = np.zeros(64, np.uint32)
    touched(checked_gpu, text("st.global.u32 [%a], %t;"), array)
    assert touched(checked_gpu, text("ld.global.u32 %x1, [%a];"), array) == [every(4, 32), set(), set()]
