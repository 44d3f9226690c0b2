"""memcheck: accesses that a processor would let pass, found and reported with line, thread and nearest buffer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

REGISTERS = ".reg .b32 %t, %b, %n, %x<5>; .reg .b64 %p, %a, %o; .reg .f32 %f<5>; .reg .pred %q;"
START = f"""{{ {REGISTERS}
    ld.param.u64 %p, [p];
    mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %t, %b, %n, %t;"""


def text(*lines: str) -> str:
    """A kernel k(p, i): %p is the pointer, %t the thread's number, %a = p + 4 * t; the first line is line 7."""
    address = "mul.wide.u32 %o, %t, 4; add.s64 %a, %p, %o; ld.param.u32 %x4, [i];"
    return (
        HEADER + f".visible .entry k(.param .u64 p, .param .u32 i) {START}{address}\n" + "\n".join((*lines, "ret; }"))
    )


def run(gpu: Any, ptx: str, array: Any, number: int = 0, *, grid: int = 1, block: Any = 32, dynamic: int = 0) -> None:
    gpu.run(ptx, "k", grid, block, array, np.uint32(number), dynamic=dynamic)


def refused(gpu: Any, ptx: str, message: str, array: Any, number: int = 0, **shape: Any) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(gpu, ptx, array, number, **shape)


STORE = text("st.global.u32 [%a], %t;")
ROOM = np.zeros(64, np.uint32)
"""Twice the size that the kernels get as theirs, so that their bad accesses do no harm."""


def test_the_first_thread_outside(checked_gpu: Any) -> None:
    array = ROOM[:41]
    near = rf"0 bytes behind the end of the nearest buffer \(164 bytes at {array.ctypes.data:#x}\)"
    at = f"{array.ctypes.data + array.nbytes:#x}"
    place = rf"PTX line 7: thread \(0, 2, 0\) of block \(1, 0, 0\) writes 4 bytes of {at}, {near}"
    ptx = STORE.replace("%tid.x", "%tid.y").replace("%ntid.x", "%ntid.y")
    with pytest.raises(RuntimeError, match="700: " + place):
        run(checked_gpu, ptx, array, grid=2, block=(2, 39))
    run(checked_gpu, STORE, array, grid=41, block=1)


def test_lanes_that_do_not_run_are_not_checked(checked_gpu: Any) -> None:
    array = np.zeros(20, np.uint32)
    run(checked_gpu, text("setp.lt.u32 %q, %t, %x4;", "@%q st.global.u32 [%a], %t;"), array, 20)
    assert array.tolist() == list(range(20))
    refused(
        checked_gpu, text("setp.lt.u32 %q, %t, %x4;", "@%q st.global.u32 [%a], %t;"), r"line 8: thread \(20,", array, 21
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ld.global.u32 %x1, [%a];", "reads 4 bytes"),
        ("ld.u32 %x1, [%a];", "reads 4 bytes"),
        ("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%p+128];", "reads 16 bytes"),
        ("st.u32 [%p+128], %x4;", "writes 4 bytes"),
        ("red.global.add.u32 [%a], 1;", "updates 4 bytes"),
        ("atom.cas.b32 %x1, [%a], 0, 1;", "updates 4 bytes"),
    ],
)
def test_every_kind_of_access(checked_gpu: Any, line: str, said: str) -> None:
    refused(checked_gpu, text(line), f"700: PTX line 7: .* {said} of .* nearest buffer", ROOM[:31], block=48)
    run(checked_gpu, text(line), ROOM, block=48)


def test_an_address_computed_in_32_bits(checked_gpu: Any) -> None:
    wrapped = text(
        "add.u32 %x1, %t, %x4;", "mul.wide.u32 %o, %x1, 4;", "add.s64 %a, %p, %o;", "st.global.u32 [%a], %t;"
    )
    run(checked_gpu, wrapped, ROOM, 3)
    refused(checked_gpu, wrapped, r"700: PTX line 10: thread \(0, 0, 0\)", ROOM, 2**32 - 4)


def test_only_the_last_bytes_outside(checked_gpu: Any) -> None:
    array = ROOM[:33].view(np.uint8)[: 4 * 33 - 2]
    refused(checked_gpu, text("ld.global.u32 %x1, [%p+128];"), "2 bytes of them behind the end", array)


def test_freed_memory(checked_gpu: Any) -> None:
    run(checked_gpu, STORE, ROOM)
    other = np.zeros(4, np.uint32)
    refused(checked_gpu, STORE, "700: .* nearest buffer", other)


def test_shared_memory(checked_gpu: Any) -> None:
    static = text(
        ".shared .align 4 .b8 room[64];", "mov.u32 %x1, room;", "add.u32 %x1, %x1, %x4;", "st.shared.u32 [%x1], %t;"
    )
    run(checked_gpu, static, ROOM, 60)
    refused(
        checked_gpu,
        static,
        "700: PTX line 10: .* writes 4 bytes of shared memory at offset 64, .* has 64 bytes",
        ROOM,
        64,
    )
    refused(checked_gpu, static, "shared memory at offset -4, ", ROOM, 2**32 - 4)
    run(checked_gpu, static, ROOM, 64, dynamic=4)


def test_local_memory_and_generic_pointers(checked_gpu: Any) -> None:
    local = text(
        ".local .align 16 .b8 room[32];",
        "mov.u64 %o, room;",
        "cvta.local.u64 %a, %o;",
        "cvt.u64.u32 %o, %x4;",
        "add.s64 %a, %a, %o;",
        "st.u32 [%a], %t;",
        "cvta.to.local.u64 %o, %a;",
        "ld.local.u32 %x1, [%o+4];",
    )
    run(checked_gpu, local, ROOM, 24)
    refused(
        checked_gpu,
        local,
        "700: PTX line 14: .* reads 4 bytes of local memory .* outside the thread's 32 bytes",
        ROOM,
        28,
    )
    refused(checked_gpu, local, "700: PTX line 12: .* writes 4 bytes of 0x", ROOM, 32)


def test_misaligned(checked_gpu: Any) -> None:
    refused(
        checked_gpu, text("ld.global.u32 %x1, [%p+2];"), "716: PTX line 7: .* reads 4 bytes of .* no multiple", ROOM
    )


def test_code_with_and_without_checks_has_different_cache_entries(gpu: Any, checked_gpu: Any) -> None:
    for one in (gpu, checked_gpu, gpu):
        run(one, STORE, ROOM)
    checked = set(checked_gpu.compiler._translator._cache.directory.iterdir())
    plain = set(gpu.compiler._translator._cache.directory.iterdir())
    kernel = re.compile(r"\w+\.\w{24}$")
    names = [{path.name for path in paths if kernel.match(path.name)} for paths in (checked, plain)]
    assert names[0]
    assert not names[0] & names[1]
