"""The kernels of the scaled-down workloads: little work, with all of a request's data flow. Their time is modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaas.papers.workloads import Workload

LAYER = """
.visible .entry {symbol}(.param .u64 x, .param .u64 w, .param .u64 b, .param .u64 y) {{
    .reg .b32 %r<2>; .reg .b64 %d<6>; .reg .f32 %f<5>;
    mov.u32 %r1, %tid.x; mul.wide.u32 %d5, %r1, 4;
    ld.param.u64 %d1, [x]; add.s64 %d1, %d1, %d5; ld.global.f32 %f1, [%d1];
    ld.param.u64 %d2, [w]; add.s64 %d2, %d2, %d5; ld.global.f32 %f2, [%d2];
    ld.param.u64 %d3, [b]; add.s64 %d3, %d3, %d5; ld.global.f32 %f3, [%d3];
    ld.param.u64 %d4, [y]; add.s64 %d4, %d4, %d5;
    add.f32 %f4, %f1, %f2; add.f32 %f4, %f4, %f3; mul.f32 %f4, %f4, 0f3F000000;
    st.global.f32 [%d4], %f4;
    ret;
}}
"""
"""y = (x + w + b) / 2, an element for each thread."""

ITERATION = """
.visible .entry {symbol}(.param .u64 x, .param .u64 y) {{
    .reg .b32 %r<2>; .reg .b64 %d<4>; .reg .f32 %f<3>;
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4;
    ld.param.u64 %d1, [x]; add.s64 %d1, %d1, %d3; ld.global.f32 %f1, [%d1];
    ld.param.u64 %d2, [y]; add.s64 %d2, %d2, %d3; ld.global.f32 %f2, [%d2];
    fma.rn.f32 %f2, %f2, 0f3F000000, %f1;
    st.global.f32 [%d2], %f2;
    ret;
}}
"""
"""y = y / 2 + x, an element for each thread."""


def symbol(workload: Workload) -> str:
    """Return the name of a workload's kernel."""
    return f"{workload.name}_{'iteration' if workload.iterations > 1 else 'layer'}"


def ptx(name: str, body: str) -> str:
    """Return a kernel's PTX under a name of its own: modelled times go by names."""
    return f".version 7.0\n.target sm_70\n.address_size 64\n{body.format(symbol=name)}"
