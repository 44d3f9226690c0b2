"""Kernels that try to reach memory outside of their window: by each instruction, with each kind of address."""

from __future__ import annotations

from softgpu.tests.compiler.harness import HEADER

CANARY = 0xC0FFEE11
BLOCK = 64

# One instruction each; {a} is an address register, which the test points outside of the window.
READS = {
    "ld.global": "ld.global.u32 %r1, [{a}];",
    "ld generic": "ld.u32 %r1, [{a}];",
    "ld.global with an offset": "ld.global.u32 %r1, [{a}+16];",
    "ld.global.nc": "ld.global.nc.u32 %r1, [{a}];",
    "ld.volatile": "ld.volatile.global.u32 %r1, [{a}];",
    "ld.relaxed": "ld.relaxed.gpu.global.u32 %r1, [{a}];",
    "ld.acquire": "ld.acquire.sys.u32 %r1, [{a}];",
    "ld.v2": "ld.global.v2.u32 {{%r1, %r2}}, [{a}];",
    "ld.v4": "ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [{a}];",
    "ld.u8": "ld.global.u8 %r1, [{a}];",
    "ld.b64": "ld.global.b64 %rd9, [{a}]; cvt.u32.u64 %r1, %rd9;",
    "ld.f32": "ld.global.f32 %f1, [{a}]; mov.b32 %r1, %f1;",
    "ld.shared": "ld.shared.u32 %r1, [{a}];",
    "ld.local": "ld.local.u32 %r1, [{a}];",
    "ld.const": "ld.const.u32 %r1, [{a}];",
    "ld.param by a register": "ld.param.u32 %r1, [{a}];",
    "ldu": "ldu.global.u32 %r1, [{a}];",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r1}}, [{a}];",
    "cp.async from": "mov.u32 %r5, buffer; cp.async.ca.shared.global [%r5], [{a}], 4; ld.shared.u32 %r1, [%r5];",
    "cp.async.cg from": "mov.u32 %r5, buffer; cp.async.cg.shared.global [%r5], [{a}], 16; ld.shared.u32 %r1, [%r5];",
    "atom.add of 0": "atom.global.add.u32 %r1, [{a}], 0;",
    "atom.or generic": "atom.or.b32 %r1, [{a}], 0;",
    "atom.shared": "atom.shared.or.b32 %r1, [{a}], 0;",
}
WRITES = {
    "st.global": "st.global.u32 [{a}], %r7;",
    "st generic": "st.u32 [{a}], %r7;",
    "st.global with an offset": "st.global.u32 [{a}+16], %r7;",
    "st.volatile": "st.volatile.global.u32 [{a}], %r7;",
    "st.relaxed": "st.relaxed.gpu.global.u32 [{a}], %r7;",
    "st.release": "st.release.sys.u32 [{a}], %r7;",
    "st.v2": "st.global.v2.u32 [{a}], {{%r7, %r7}};",
    "st.v4": "st.global.v4.u32 [{a}], {{%r7, %r7, %r7, %r7}};",
    "st.u8": "st.global.u8 [{a}], %r7;",
    "st.b64": "st.global.b64 [{a}], %rd8;",
    "st.shared": "st.shared.u32 [{a}], %r7;",
    "st.local": "st.local.u32 [{a}], %r7;",
    "cp.async to": "cp.async.ca.shared.global [{a}], [%rd1], 4;",
    "cp.async to, fewer bytes": "cp.async.ca.shared.global [{a}], [%rd1], 16, %r6;",
    **{
        f"{base}.{name}.{kind}": f"{base}.global.{name}.{kind} {'' if base == 'red' else '%r1, '}[{{a}}], %r7;"
        for base in ("atom", "red")
        for name, kind in (
            ("add", "u32"), ("min", "u32"), ("max", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32"),
            ("inc", "u32"), ("dec", "u32"), ("min", "s32"), ("max", "s32"),
        )
    },
    "atom.exch": "atom.global.exch.b32 %r1, [{a}], %r7;",
    "atom.cas": f"mov.u32 %r5, {CANARY}; atom.global.cas.b32 %r1, [{{a}}], %r5, %r7;",
    "atom generic": "atom.exch.b32 %r1, [{a}], %r7;",
    "atom.shared.exch": "atom.shared.exch.b32 %r1, [{a}], %r7;",
    "atom.add.f32": "atom.global.add.f32 %f1, [{a}], 0f3F800000;",
    "atom.add.u64": "atom.global.add.u64 %rd9, [{a}], %rd8;",
    "atom.exch.b64": "atom.global.exch.b64 %rd9, [{a}], %rd8;",
    "red.add.f64": "mov.f64 %fd1, 0d3FF0000000000000; red.global.add.f64 [{a}], %fd1;",
    "red.add.noftz.f16x2": "red.global.add.noftz.f16x2 [{a}], %r7;",
}  # fmt: skip
ATTACKS = READS | WRITES
# How the address differs between lanes: the code generator has a way of its own for each.
SHAPES = {
    "uniform": "mov.u64 %rd2, %rd0;",
    "row": "mul.wide.u32 %rd3, %r0, 4; add.u64 %rd2, %rd0, %rd3;",
    "apart": "mul.wide.u32 %rd3, %r0, 48; add.u64 %rd2, %rd0, %rd3;",
    "far apart": "cvt.u64.u32 %rd3, %r0; shl.b64 %rd3, %rd3, 30; add.u64 %rd2, %rd0, %rd3;",
    "signed index": "add.s32 %r8, %r0, %r9; mul.wide.s32 %rd3, %r8, 4; add.s64 %rd2, %rd0, %rd3;",
    "any": "mul.lo.u32 %r8, %r0, %r0; mul.wide.u32 %rd3, %r8, 4; add.u64 %rd2, %rd0, %rd3;",
    "loaded": "mul.wide.u32 %rd3, %r0, 8; add.u64 %rd3, %rd4, %rd3; ld.global.u64 %rd2, [%rd3];",
}


def kernel(shape: str, body: str, where: str = "ld.param.u64 %rd0, [where];") -> str:
    """Return a kernel with the attack `body`, in a block of up to BLOCK threads, for one shape of addresses.

    where: code that puts the address to attack into %rd0. own: 4 bytes or more of the attacker. table: BLOCK addresses.
    out: a word of each thread, with what the thread has read. zero: 0, which the compiler does not know.
    """
    return (
        HEADER
        + f"""
.visible .entry k(.param .u64 where, .param .u64 own, .param .u64 table, .param .u64 out, .param .u32 zero)
{{
  .reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .f32 %f<2>; .reg .f64 %fd<2>; .reg .b64 %p;
  .shared .align 16 .b8 buffer[256];
  .local .align 16 .b8 mine[64];
  {where} ld.param.u64 %rd1, [own]; ld.param.u64 %rd4, [table]; ld.param.u32 %r9, [zero];
  mov.u32 %r0, %tid.x; mov.u32 %r7, 0x5EED5EED; mov.u64 %rd8, 0x5EED5EED5EED5EED; mov.u32 %r1, 0; mov.u32 %r6, 3;
  {SHAPES[shape]}
  {body.format(a="%rd2")}
  ld.param.u64 %p, [out]; mul.wide.u32 %rd3, %r0, 4; add.u64 %p, %p, %rd3; st.global.u32 [%p], %r1;
  ret;
}}"""
    )
