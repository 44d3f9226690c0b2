"""Instructions that only advise, and those that end a thread or a launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER, Case, run

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])

HINTS = """
.reg .b64 %y; .reg .b32 %v, %z;
prefetch.global.L1 [{a}]; prefetch.global.L2 [{a}]; prefetch.global.L2::evict_last [{a}]; prefetch.L1 [{a}];
prefetchu.L1 [{a}];
createpolicy.fractional.L2::evict_last.b64 %y, 1.0;
createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %y, 0.5;
createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %y, [{a}], 4096, 8192;
applypriority.global.L2::evict_normal [{a}], 128;
nanosleep.u32 20; mov.u32 %z, 3; nanosleep.u32 %z;
pmevent 7;
fence.sc.gpu; fence.acq_rel.cta; membar.gl; membar.cta; membar.sys;
ldu.global.u32 %v, [{a}];
ld.global.L2::cache_hint.b32 %z, [{a}], %y;
add.u32 %v, %v, %z;
ld.global.nc.L1::no_allocate.L2::128B.b32 %z, [{a}];
add.u32 {d}, %v, %z;
st.global.L2::cache_hint.b32 [{a}], {d}, %y;
red.global.add.L2::cache_hint.u32 [{a}], 1, %y;
discard.global.L2 [{b}], 128;
"""


@SCALARS
def test_hints_change_nothing(gpu: Any, uniform: bool) -> None:
    """Also the one that may lose what was there: the data of discard is undefined, so the old values are right."""
    memory = np.arange(128, dtype=np.uint32)
    pointers = memory.ctypes.data + 4 * np.arange(64, dtype=np.uint64)
    case = Case(HINTS, "u32", ("u64", "u64"))
    out = run(gpu, case, [pointers, np.full(64, memory.ctypes.data + 256, np.uint64)], uniform)
    if uniform:  # 32 threads do the same, one after the other or at once
        assert ((memory[:64] - 32) % 3 == 0).all()
    else:
        np.testing.assert_array_equal(out, 3 * np.arange(64))
        np.testing.assert_array_equal(memory[:64], 3 * np.arange(64) + 1)
    np.testing.assert_array_equal(memory[64:], np.arange(64, 128))


def test_a_choice_of_labels_and_ways_to_end(gpu: Any) -> None:
    """brx.idx, exit in the midst, a break for debuggers, and the first lane of the warp by elect."""
    text = f"""{HEADER}.visible .entry k(.param .u64 out) {{
.reg .b64 %p, %w; .reg .b32 %t, %c, %r; .reg .pred %first;
mov.u32 %t, %tid.x;
ld.param.u64 %p, [out];
mul.wide.u32 %w, %t, 4;
add.u64 %p, %p, %w;
and.b32 %c, %t, 3;
elect.sync %r|%first, -1;
@%first st.global.u32 [%p+128], 77;
brkpt;
table: .branchtargets zero, one, two, zero;
brx.idx %c, table;
one: st.global.u32 [%p], 10; exit;
two: mov.u32 %r, 20; bra.uni done;
zero: mov.u32 %r, 5;
done: st.global.u32 [%p], %r;
}}"""
    out = np.zeros(64, np.uint32)
    gpu.run(text, "k", 1, 32, out)
    assert out[:32].tolist() == [5, 10, 20, 5] * 8
    assert out[32:].tolist() == [77] + [0] * 31


def test_the_error_of_a_trap_has_its_line(gpu: Any) -> None:
    text = f"""{HEADER}.visible .entry k() {{ .reg .b32 %t; .reg .pred %p;
mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 40;
@%p trap;
ret; }}"""
    gpu.run(text, "k", 1, 32)
    with pytest.raises(RuntimeError, match="719: trap at PTX line 6"):
        gpu.run(text, "k", 1, 64)
