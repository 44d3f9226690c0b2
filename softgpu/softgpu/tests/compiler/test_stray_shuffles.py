"""Under memcheck a shuffle that reads a lane which does not run is reported by kernel and line, and its value shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

CONSTANT, CHOSEN = "shfl.sync.down.b32 %v, %i, 8, 31, -1;", "shfl.sync.down.b32 %v, %i, %by, 31, -1;"


def text(name: str, line: str) -> str:
    """Threads from 24 on leave before the shuffle; the others store what thread + 8 had."""
    return f"""{HEADER}
.visible .entry {name}(.param .u64 out, .param .u32 by)
{{
 .reg .pred %p;
 .reg .b32 %i, %v, %by;
 .reg .b64 %out, %at;
 mov.u32 %i, %tid.x;
 ld.param.u64 %out, [out];
 ld.param.u32 %by, [by];
 setp.ge.u32 %p, %i, 24;
 @%p bra done;
 {line}
 mul.wide.u32 %at, %i, 4;
 add.u64 %out, %out, %at;
 st.global.u32 [%out], %v;
done:
 ret;
}}
"""


@pytest.mark.parametrize(("name", "line"), [("constant", CONSTANT), ("chosen", CHOSEN)])
def test_a_stray_shuffle_is_reported_once_and_its_value_has_all_bits_set(
    checked_gpu: Any, capfd: pytest.CaptureFixture[str], name: str, line: str
) -> None:
    ptx = text(name, line)
    at = 1 + ptx[: ptx.index("shfl")].count("\n")
    for _ in range(2):
        out = np.zeros(32, np.uint32)
        checked_gpu.run(ptx, name, 1, 32, out, np.uint32(8))
        np.testing.assert_array_equal(out, [*range(8, 24), *[0xFFFFFFFF] * 8, *[0] * 8])
    (said,) = capfd.readouterr().err.splitlines()
    place = f"softgpu: kernel {name}, PTX line {at}: thread (16, 0, 0) of block (0, 0, 0)"
    assert said.startswith(f"{place} shuffles a value")


@pytest.mark.parametrize("line", [CONSTANT, CHOSEN])
def test_shuffles_of_lanes_that_run_are_not_reported(
    checked_gpu: Any, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    """If all lanes run, lanes that read beyond the end of the warp keep their own value."""
    ptx = text("whole", line).replace("%i, 24;", "%i, 32;")
    out = np.zeros(32, np.uint32)
    checked_gpu.run(ptx, "whole", 1, 32, out, np.uint32(8))
    np.testing.assert_array_equal(out, [*range(8, 32), *range(24, 32)])
    assert capfd.readouterr().err == ""
