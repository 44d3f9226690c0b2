"""Kernels that read and write where they should not reach neither memory nor secrets outside of their window."""

from __future__ import annotations

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.compiler.corpus import device
from softgpu.tests.compiler.corpus.case import Launch
from softgpu.tests.compiler.corpus.device import call
from softgpu.tests.compiler.harness import HEADER
from tests.code.fencing.window import MEMORY, Module, outside, read, window
from tests.lanes import spread

pytestmark = pytest.mark.usefixtures("softgpu")

SECRET = 0x5EC2E7
WORDS = 1024

DECLARED = """
.reg .b64 %a, %o, %b, %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .f32 %f<4>; .reg .f64 %d<4>; .reg .pred %p<4>;
.shared .align 16 .b8 tile[256]; .local .align 16 .b8 own[64];
ld.param.u64 %a, [a]; ld.param.u64 %o, [o]; cvta.to.global.u64 %b, %a;
mov.u32 %r1, 7; mov.u32 %r2, 7; mov.u32 %r3, 7; mov.u32 %r4, 7; mov.b64 %rd1, 7; mov.b64 %rd2, 7;
mov.f32 %f1, 0f3F800000; mov.f64 %d1, 0d3FF0000000000000; setp.eq.u32 %p1, %r1, 7;
"""

LOADS = [
    *(
        f"ld{words}.global{last} {to}, [%b];"
        for words, last, to in (
            ("", ".u32", "%r1"),
            ("", ".nc.u32", "%r1"),
            (".volatile", ".u32", "%r1"),
            ("", ".v2.u32", "{%r1, %r2}"),
            ("", ".v4.u32", "{%r1, %r2, %r3, %r4}"),
            (".relaxed.gpu", ".u32", "%r1"),
            (".acquire.sys", ".u32", "%r1"),
            ("", ".L1::evict_last.u32", "%r1"),
            ("", ".ca.b32", "%r1"),
        )
    ),
    "ldu.global.u32 %r1, [%b];",
    "ld.global.u32 %r1, [%b+-4096];",
    "ld.global.u32 %r1, [%b+4092];",
    "ld.u32 %r1, [%a];",
    "ld.u32 %r1, [%a+2048];",
    "ld.v2.u32 {%r1, %r2}, [%a];",
    "@%p1 ld.global.u32 %r1, [%b];",
    "@!%p1 ld.u32 %r2, [%a]; @%p1 ld.u32 %r1, [%a];",
    "ld.const.u32 %r1, [%a];",
    "cvta.const.u64 %rd3, %a; ld.u32 %r1, [%rd3];",
    "cvta.to.const.u64 %rd3, %a; ld.const.u32 %r1, [%rd3+8];",
    "add.s64 %rd3, %b, -8; ld.global.u32 %r1, [%rd3+8];",
    "mov.b64 %rd3, %o; ld.global.u32 %r2, [%rd3]; mov.b64 %rd3, %b; ld.global.u32 %r1, [%rd3];",
    "mov.b64 %rd3, %o; ld.global.u32 %r2, [%rd3]; { .reg .b64 %rd3; mov.b64 %rd3, %b; ld.global.u32 %r1, [%rd3]; }",
    "mov.b64 %rd3, %o; ld.global.u32 %r2, [%rd3]; @%p1 mov.b64 %rd3, %b; ld.global.u32 %r1, [%rd3];",
    "mov.b64 %rd3, %o; bra in; in: ld.global.u32 %r1, [%rd3]; mov.b64 %rd3, %b; setp.ne.u32 %p2, %r2, 7;"
    " mov.u32 %r2, 8; @!%p2 bra in;",
    "mov.b64 {%r1, %r2}, %b; mov.b64 %rd3, {%r1, %r2}; ld.global.u32 %r1, [%rd3];",
    "atom.global.add.u32 %r1, [%b], 0;",
    "atom.global.cas.b32 %r1, [%b], 1, 2;",
    "atom.exch.b32 %r1, [%a], %r2;",
    "atom.global.gpu.acq_rel.max.s32 %r1, [%b], 1;",
    "cp.async.ca.shared.global [tile], [%b], 4; cp.async.wait_all; ld.shared.u32 %r1, [tile];",
    "cp.async.cg.shared.global [tile], [%b], 16; cp.async.wait_all; ld.shared.u32 %r1, [tile+4];",
    "cp.async.ca.shared.global [tile], [%b+8], 8, 8; cp.async.wait_all; ld.shared.u32 %r1, [tile];",
]
"""Loads that leave what they read in %r1."""

STORES = [
    *(
        f"st{words}.global{last} [%b], {what};"
        for words, last, what in (
            ("", ".u32", "%r1"),
            (".volatile", ".u32", "%r1"),
            ("", ".v2.u32", "{%r1, %r2}"),
            ("", ".v4.f32", "{%f1, %f1, %f1, %f1}"),
            (".release.gpu", ".b32", "%r1"),
            ("", ".f64", "%d1"),
            ("", ".u8", "%r1"),
            ("", ".wt.u32", "%r1"),
        )
    ),
    "st.u32 [%a], %r1;",
    "st.u32 [%a+2000], %r1;",
    "st.global.u32 [%b+-2048], %r1;",
    "red.global.add.u32 [%b], 1;",
    "red.add.u32 [%a], 1;",
    "red.global.gpu.relaxed.add.f32 [%b], %f1;",
    "atom.global.add.u64 %rd1, [%b], 1;",
    "atom.global.inc.u32 %r1, [%b], 99;",
    "atom.or.b32 %r1, [%a], 6;",
    "prefetch.global.L2 [%b]; prefetch.L1 [%a]; prefetchu.L1 [%a]; discard.global.L2 [%b], 128;"
    " applypriority.global.L2::evict_normal [%b], 128; st.global.u32 [%b], 1;",
]


def kernel(body: str) -> str:
    return (
        f"{HEADER}.visible .entry k(.param .u64 a, .param .u64 o)\n{{{DECLARED}{body}\n"
        "cvta.to.global.u64 %rd7, %o; st.global.u32 [%rd7], %r1; ret;}"
    )


def stray(ptx: str, offset: int = 0) -> tuple[int, np.ndarray, np.ndarray]:
    """Run a kernel with an address outside of the window. Return its result, that memory, and the window's."""
    with window() as within, outside() as other:
        secrets = np.full(WORDS, SECRET, np.uint32)
        call(driver.cuMemcpyHtoD(other, secrets.ctypes.data, secrets.nbytes))
        module = Module(ptx, within)
        result = within.put(np.zeros(4, np.uint32))
        there = np.uint64((other + 2 * WORDS + offset) % (1 << 64))
        module.launch(Launch("k", 1, 1, [there, "result"]), {"result": result})
        with device.ending():
            call(driver.cuCtxSynchronize())
        found = int(read(result, np.zeros(1, np.uint32))[0])
        after = read(other, np.zeros(WORDS, np.uint32))
        inside = read(within.base, np.zeros(MEMORY, np.uint8))
        module.close()
    return found, after, inside


@pytest.mark.parametrize("body", spread(LOADS, 12))
def test_a_load_reads_nothing_outside(body: str) -> None:
    found, after, _ = stray(kernel(body))
    assert found != SECRET
    assert (after == SECRET).all()


@pytest.mark.parametrize("body", spread(STORES, 8))
def test_a_store_writes_nothing_outside(body: str) -> None:
    _, after, inside = stray(kernel(body))
    assert (after == SECRET).all()
    assert inside.any(), "the access is moved into the window"


def test_pointers_in_memory_are_confined() -> None:
    """A kernel writes an address outside into its own memory, and follows it."""
    body = "st.global.u64 [%o+8], %a; ld.global.u64 %rd3, [%o+8]; ld.u32 %r1, [%rd3]; st.u32 [%rd3], 9;"
    found, after, _ = stray(kernel(body))
    assert found != SECRET
    assert (after == SECRET).all()


@pytest.mark.parametrize("there", [0, 1 << 46, -(1 << 46), 1 << 63, -1 - (1 << 63)])
def test_wild_addresses_are_confined(there: int) -> None:
    found, after, _ = stray(kernel("ld.global.u32 %r1, [%b]; st.u32 [%a], 9;"), there - there % 16)
    assert found != SECRET
    assert (after == SECRET).all()


@pytest.mark.parametrize(
    "store",
    [
        "mov.u64 %rd3, own; add.s64 %rd3, %rd3, 4000; st.local.u32 [%rd3], %r2;",
        "mov.u32 %r5, own; add.u32 %r5, %r5, -8; st.local.u32 [%r5+4], %r2;",
        "mov.u64 %rd3, own; cvta.local.u64 %rd3, %rd3; st.u32 [%rd3+64], %r2;",
        "mov.u64 %rd3, own; cvta.local.u64 %rd3, %rd3; add.s64 %rd3, %rd3, 64; st.u32 [%rd3], %r2;",
    ],
)
def test_a_store_to_local_memory_stays_in_the_variable(store: str) -> None:
    """Another place on the stack may hold a confined address, or that of a caller."""
    found, _, _ = stray(kernel(f"mov.u32 %r2, 77; st.local.u32 [own+60], 0; {store} ld.local.u32 %r1, [own+60];"))
    assert found == 77


def test_huge_strides_are_confined() -> None:
    """Each of many steps away from the kernel's own memory."""
    body = """
mov.b64 %rd3, %o; mov.u32 %r5, 0; mov.u32 %r1, 0;
next: ld.global.u32 %r6, [%rd3]; setp.eq.u32 %p3, %r6, 6210279; selp.u32 %r1, %r6, %r1, %p3; st.global.u32 [%rd3], 3;
mad.wide.u32 %rd3, %r5, 1000003, %rd3; and.b64 %rd3, %rd3, -4; add.u32 %r5, %r5, 1;
setp.lt.u32 %p2, %r5, 500; @%p2 bra next;
"""
    assert SECRET == 6210279
    found, after, _ = stray(kernel(body))
    assert found != SECRET
    assert (after == SECRET).all()


def test_generic_pointers_to_shared_and_local_memory_and_parameters_keep_their_meaning() -> None:
    body = """
mov.u64 %rd3, tile; cvta.shared.u64 %rd4, %rd3; st.u32 [%rd4+4], 5; ld.shared.u32 %r1, [tile+4];
mov.u64 %rd3, own; cvta.local.u64 %rd5, %rd3; st.u32 [%rd5+8], 50; ld.local.u32 %r2, [own+8];
add.u32 %r1, %r1, %r2; mov.b64 %rd6, o; cvta.param.u64 %rd6, %rd6; ld.u64 %rd6, [%rd6];
setp.eq.u64 %p2, %rd6, %o; selp.u32 %r2, 500, 0, %p2; add.u32 %r1, %r1, %r2;
selp.b64 %rd3, %rd4, %rd5, %p2; atom.add.u32 %r2, [%rd3+4], 1; ld.shared.u32 %r2, [tile+4]; add.u32 %r1, %r1, %r2;
"""
    found, _, _ = stray(kernel(body))
    assert found == 555 + 6
