"""Kernels that fill shared memory and local memory, and kernels that read both without writing them first."""

from __future__ import annotations

import kaas

SHARED_WORDS, LOCAL_WORDS = 4096, 64
BLOCKS, THREADS = 512, 128
"""More blocks than any GPU has multiprocessors."""
MARK = 0x5EC2E7

PTX = f"""
.version 7.3
.target sm_80
.address_size 64

.visible .entry leave(.param .u32 mark, .param .u64 out)
{{
 .shared .align 16 .b8 room[{4 * SHARED_WORDS}];
 .local .align 16 .b8 frame[{4 * LOCAL_WORDS}];
 .reg .pred %p;
 .reg .b32 %mark, %i, %at, %v;
 .reg .b64 %out, %wide, %base;
 ld.param.u32 %mark, [mark];
 ld.param.u64 %out, [out];
 mov.u32 %i, %tid.x;
more:
 shl.b32 %at, %i, 2;
 mov.u32 %v, room;
 add.u32 %v, %v, %at;
 st.volatile.shared.u32 [%v], %mark;
 add.u32 %i, %i, {THREADS};
 setp.lt.u32 %p, %i, {SHARED_WORDS};
 @%p bra more;
 mov.u32 %i, 0;
 mov.u64 %base, frame;
again:
 mul.wide.u32 %wide, %i, 4;
 add.u64 %wide, %base, %wide;
 st.local.u32 [%wide], %mark;
 add.u32 %i, %i, 1;
 setp.lt.u32 %p, %i, {LOCAL_WORDS};
 @%p bra again;
 and.b32 %i, %mark, {LOCAL_WORDS - 1};
 mul.wide.u32 %wide, %i, 4;
 add.u64 %wide, %base, %wide;
 ld.local.u32 %v, [%wide];
 st.global.u32 [%out], %v;
 ret;
}}

// The words of both memories that hold the mark: out[0] of shared, out[1] of local memory.
.visible .entry look(.param .u32 mark, .param .u64 out)
{{
 .shared .align 16 .b8 room[{4 * SHARED_WORDS}];
 .local .align 16 .b8 frame[{4 * LOCAL_WORDS}];
 .reg .pred %p;
 .reg .b32 %mark, %i, %at, %v, %n;
 .reg .b64 %out, %wide, %base;
 ld.param.u32 %mark, [mark];
 ld.param.u64 %out, [out];
 mov.u32 %n, 0;
 mov.u32 %i, %tid.x;
more:
 shl.b32 %at, %i, 2;
 mov.u32 %v, room;
 add.u32 %v, %v, %at;
 ld.volatile.shared.u32 %v, [%v];
 setp.eq.u32 %p, %v, %mark;
 @%p add.u32 %n, %n, 1;
 add.u32 %i, %i, {THREADS};
 setp.lt.u32 %p, %i, {SHARED_WORDS};
 @%p bra more;
 red.global.add.u32 [%out], %n;
 mov.u32 %n, 0;
 mov.u32 %i, 0;
 mov.u64 %base, frame;
again:
 mul.wide.u32 %wide, %i, 4;
 add.u64 %wide, %base, %wide;
 ld.local.u32 %v, [%wide];
 setp.eq.u32 %p, %v, %mark;
 @%p add.u32 %n, %n, 1;
 add.u32 %i, %i, 1;
 setp.lt.u32 %p, %i, {LOCAL_WORDS};
 @%p bra again;
 red.global.add.u32 [%out+4], %n;
 ret;
}}
"""


def task(symbol: str) -> kaas.KTask:
    """Return a kTask: `look` counts the words with the mark, of shared and of local memory; `leave` writes the mark."""
    out = kaas.Buffer("out", 2, "uint32")
    library = kaas.Library.from_ptx(PTX)
    return kaas.KTask([kaas.Kernel(library, symbol, BLOCKS, THREADS, [kaas.u32(MARK), kaas.InOut(out)])], [out])
