"""ldmatrix against NumPy: tiles whose rows lie anywhere in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

ROWS = 40  # of 16 bytes, in shared memory


def kernel(count: int, turned: str, generic: bool) -> str:
    registers = ", ".join(f"%d{i}" for i in range(count))
    stores = "".join(f"st.global.u32 [%out+{128 * i}], %d{i};\n" for i in range(count))
    space, convert = ("", "cvta.shared.u64 %at, %at;") if generic else (".shared", "")
    return f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u64 row, .param .u64 out)
{{
 .shared .align 16 .b8 room[{16 * ROWS}];
 .reg .b32 %d<4>, %i, %n, %r;
 .reg .b64 %x, %row, %out, %at, %base, %wide;
 .reg .pred %p;
 ld.param.u64 %x, [x];
 ld.param.u64 %row, [row];
 ld.param.u64 %out, [out];
 mov.u32 %i, %tid.x;
 mul.wide.u32 %wide, %i, 4;
 mov.u64 %base, room;
 add.u64 %at, %base, %wide;
 add.u64 %x, %x, %wide;
 mov.u32 %n, 0;
copy:
 ld.global.u32 %r, [%x];
 st.shared.u32 [%at], %r;
 add.u64 %x, %x, 128;
 add.u64 %at, %at, 128;
 add.u32 %n, %n, 1;
 setp.lt.u32 %p, %n, {ROWS // 8};
 @%p bra copy;
 bar.warp.sync -1;
 add.u64 %row, %row, %wide;
 add.u64 %out, %out, %wide;
 ld.global.u32 %r, [%row];
 mad.wide.u32 %at, %r, 16, %base;
 {convert}
 ldmatrix.sync.aligned.m8n8.x{count}{turned}{space}.b16 {{{registers}}}, [%at];
 {stores} ret;
}}
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", ["", ".trans"])
@pytest.mark.parametrize("generic", [False, True])
def test_ldmatrix(checked_gpu: Any, count: int, turned: str, generic: bool) -> None:
    """Lanes beyond the rows of `count` tiles name rows that are not there."""
    x = np.random.RandomState(count).randint(0, 1 << 16, (ROWS, 8)).astype(np.uint16)
    row = np.random.RandomState(5).permutation(ROWS)[:32].astype(np.uint32)
    row[8 * count :] = 10**8
    out = np.zeros((count, 32), np.uint32)
    checked_gpu.run(kernel(count, turned, generic), "k", 1, 32, x, row, out)
    tiles = x[row[: 8 * count]].reshape(count, 8, 8)
    tiles = np.ascontiguousarray(tiles.transpose(0, 2, 1) if turned else tiles)
    np.testing.assert_array_equal(out, tiles.view(np.uint32).reshape(count, 32))


def test_a_row_that_is_not_there(checked_gpu: Any) -> None:
    row = np.zeros(32, np.uint32)
    row[11] = ROWS
    with pytest.raises(RuntimeError, match=rf"reads 16 bytes .*shared memory at offset {16 * ROWS}"):
        checked_gpu.run(kernel(2, "", False), "k", 1, 32, np.zeros((ROWS, 8), np.uint16), row, row)
