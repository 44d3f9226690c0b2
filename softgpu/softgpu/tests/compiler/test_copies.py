"""cp.async against NumPy: what is copied, what becomes zero, and the errors of bad addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.c_interface import CompileError
from softgpu.tests.compiler.harness import HEADER

SLOT = 16
"""Each lane has so many bytes of its own in global and in shared memory."""


def kernel(copy: str) -> str:
    """k(x, out, count, place): lane l copies from x + 16 l to its slot, whose 16 bytes were all 0xAA before; count and
    place are what each lane has of these arrays. The copy begins in line 36."""
    return f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u64 out, .param .u64 count, .param .u64 place)
{{
 .shared .align 16 .b8 room[{32 * SLOT}];
 .reg .b32 %i, %n, %to, %a, %b, %c, %d;
 .reg .b64 %from, %out, %at, %policy, %wide, %four;
 .reg .pred %zero, %none, %one, %odd;
 ld.param.u64 %from, [x];
 ld.param.u64 %out, [out];
 mov.u32 %i, %tid.x;
 mul.wide.u32 %wide, %i, {SLOT};
 mul.wide.u32 %four, %i, 4;
 add.u64 %from, %from, %wide;
 add.u64 %out, %out, %wide;
 ld.param.u64 %at, [count];
 add.u64 %at, %at, %four;
 ld.global.u32 %n, [%at];
 setp.eq.u32 %zero, %n, 0;
 and.b32 %a, %i, 1;
 setp.eq.u32 %odd, %a, 1;
 setp.ne.u32 %one, %i, %i;
 not.pred %one, %one;
 mov.u32 %to, room;
 mad.lo.u32 %to, %i, {SLOT}, %to;
 mov.u32 %a, 0xAAAAAAAA;
 st.shared.v4.u32 [%to], {{%a, %a, %a, %a}};
 ld.param.u64 %at, [place];
 add.u64 %at, %at, %four;
 ld.global.u32 %a, [%at];
 add.u32 %to, %to, %a;
 createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;

{copy}
 cp.async.commit_group;
 cp.async.wait_group 0;
 cp.async.wait_all;
 sub.u32 %to, %to, %a;
 ld.shared.v4.u32 {{%a, %b, %c, %d}}, [%to];
 st.global.v4.u32 [%out], {{%a, %b, %c, %d}};
 ret;
}}
"""


def run(gpu: Any, copy: str, count: Any = 0, place: Any = 0, bytes_there: int = 32 * SLOT) -> tuple[Any, Any]:
    """(what lay in global memory, what is in shared memory then): rows of 16 bytes."""
    x = np.random.RandomState(3).randint(0, 256, 32 * SLOT).astype(np.uint8)
    out = np.zeros((32, SLOT), np.uint8)
    counts, places = (np.broadcast_to(one, 32).astype(np.uint32) for one in (count, place))
    room = np.zeros(32 * SLOT + 16, np.uint8)
    start = -room.ctypes.data % 16
    aligned = room[start : start + bytes_there]
    aligned[:] = x[:bytes_there]
    gpu.run(kernel(copy), "k", 1, 32, aligned, out, counts, places)
    return x.reshape(32, SLOT), out


FORMS = [
    ("ca.shared.global", 4), ("ca.shared.global.L2::128B", 8), ("ca.shared::cta.global", 16), ("cg.shared.global", 16),
    ("cg.shared.global.L2::256B", 16),
]  # fmt: skip


@pytest.mark.parametrize(("form", "size"), FORMS)
def test_copies(checked_gpu: Any, form: str, size: int) -> None:
    x, out = run(checked_gpu, f"cp.async.{form} [%to], [%from], {size};")
    np.testing.assert_array_equal(out[:, :size], x[:, :size])
    assert (out[:, size:] == 0xAA).all()
    hinted = form.replace("global", "global.L2::cache_hint")
    x, again = run(checked_gpu, f"cp.async.{hinted} [%to], [%from], {size}, %policy;")
    np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize(("form", "size"), FORMS)
def test_bytes_that_are_not_read_become_zero(checked_gpu: Any, form: str, size: int) -> None:
    count = np.arange(32) % (size + 1)
    x, out = run(checked_gpu, f"cp.async.{form} [%to], [%from], {size}, %n;", count)
    column = np.arange(SLOT)
    expected = np.where(column < count[:, None], x, np.where(column < size, 0, 0xAA))
    np.testing.assert_array_equal(out, expected)
    x, out = run(checked_gpu, f"cp.async.{form} [%to], [%from], {size}, 3;")
    np.testing.assert_array_equal(out, np.where(column < 3, x, np.where(column < size, 0, 0xAA)))


@pytest.mark.parametrize("policy", ["", ", %policy"])
def test_bytes_that_are_ignored_become_zero(checked_gpu: Any, policy: str) -> None:
    count = np.arange(32) % 3
    hint = ".L2::cache_hint" if policy else ""
    x, out = run(checked_gpu, f"cp.async.ca.shared.global{hint} [%to], [%from], 8, %zero{policy};", count)
    column = np.arange(SLOT)
    np.testing.assert_array_equal(out, np.where(column < 8, np.where(count[:, None] == 0, 0, x), 0xAA))


def test_only_running_lanes_copy(checked_gpu: Any) -> None:
    x, out = run(checked_gpu, "@%odd cp.async.ca.shared.global [%to+4], [%from+4], 4;")
    column = np.arange(SLOT) // 4
    np.testing.assert_array_equal(out, np.where((column == 1) & (np.arange(32)[:, None] % 2 == 1), x, 0xAA))


def test_copies_of_divergent_lanes(gpu: Any) -> None:
    copies = """@%odd bra odd;
 cp.async.ca.shared.global [%to], [%from], 4;
 bra done;
odd: cp.async.cg.shared.global [%to], [%from], 16;
done:"""
    x, out = run(gpu, copies)
    np.testing.assert_array_equal(out[1::2], x[1::2])
    np.testing.assert_array_equal(out[::2, :4], x[::2, :4])
    assert (out[::2, 4:] == 0xAA).all()


def test_bad_addresses(checked_gpu: Any) -> None:
    copy = "cp.async.ca.shared.global [%to], [%from], 8, %n;"

    def refused(message: str, count: Any = 8, place: Any = 0, there: int = 32 * SLOT) -> None:
        with pytest.raises(RuntimeError, match=message):
            run(checked_gpu, copy, count, place, there)

    refused(r"700: PTX line 36: thread \(31, 0, 0\) .* reads 8 bytes of .* nearest buffer", there=31 * SLOT)
    refused(r"reads 6 bytes of .* 2 bytes of them behind", count=6, there=31 * SLOT + 4)
    run(checked_gpu, copy, np.where(np.arange(32) == 31, 4, 8), 0, 31 * SLOT + 4)
    run(checked_gpu, copy, np.where(np.arange(32) == 31, 0, 8), 0, 31 * SLOT)
    outside = np.where(np.arange(32) == 31, 16, 0)
    refused(r"writes 8 bytes of shared memory at offset 512, of which the block has 512", place=outside)
    refused(r"writes 8 bytes of shared memory at offset 512", count=0, place=outside)
    refused(r"716: .* thread \(0, 0, 0\) .* writes 8 bytes of .* no multiple of that", place=4)
    with pytest.raises(RuntimeError, match=r"716: .* reads 8 bytes of .* no multiple of that"):
        run(checked_gpu, copy.replace("%from", "%from+4"), 2)


ILLEGAL = [
    "cp.async.shared.global [%to], [%from], 4;", "cp.async.ca.cg.shared.global [%to], [%from], 16;",
    "cp.async.cg.shared.global [%to], [%from], 8;", "cp.async.ca.shared.global [%to], [%from], 12;",
    "cp.async.ca.shared.global [%to], [%from], %n;", "cp.async.ca.global.shared [%from], [%to], 4;",
    "cp.async.ca.shared.global %to, [%from], 4;", "cp.async.ca.shared.global [%to], %from, 4;",
    "cp.async.ca.shared.global [%to], [%from], 4, 4, 4;", "cp.async.ca.shared.global [%to], [%from], 4, %policy;",
    "cp.async.ca.global [%to], [%from], 4;", "cp.async.ca.shared.global [%to], [%from];",
    "cp.async.ca.shared.global.b32 [%to], [%from], 4;", "cp.async.wait_group %n;", "cp.async.wait_group;",
    "cp.async.wait_all 1;", "cp.async.commit_group 1;", "cp.async;", "cp;",
    "cp.async.ca.shared.global [%to], [%from], 4, _;",
]  # fmt: skip


@pytest.mark.parametrize("line", ILLEGAL)
def test_illegal_forms(gpu: Any, line: str) -> None:
    with pytest.raises(CompileError, match="line 36: "):
        gpu.compiler.load(kernel(line).encode())
