"""Each instruction of PTX that reaches memory is confined as its row of the table says, or refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kaas.code.fencing import fence, table
from kaas.errors import CannotFence

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
DECLARED = """
.reg .b64 %a, %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .f32 %f<8>; .reg .f64 %d<4>; .reg .pred %p<4>;
.reg .b128 %q<3>; .shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 mbar; .local .align 16 .b8 own[64];
ld.param.u64 %a, [a]; mov.u32 %r1, 7; mov.u32 %r2, 7; mov.u32 %r3, 7; mov.u32 %r4, 7; mov.b64 %rd1, 7; mov.b64 %rd2, 7;
mov.f32 %f1, 0f3F800000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1; mov.f64 %d1, 0d3FF0000000000000;
"""


def kernel(body: str, variables: str = "") -> str:
    return f"{HEADER}{variables}\n.visible .entry k(.param .u64 a)\n{{{DECLARED}\n{body}\nret;\n}}\n"


def confined(body: str, variables: str = "") -> list[str]:
    """Return the statements that a body becomes."""
    ptx = fence(kernel(body, variables)).ptx
    lines = [line.strip() for line in ptx.partition("mov.f64 %d1")[2].splitlines()][1:]
    return lines[: lines.index("ret;")]


def to_global(register: str, address: str = "%a", first: int = 0) -> list[str]:
    low, high = f"%kaas_i{first}", f"%kaas_i{first + 1}"
    return [
        f"mov.b64 {{{low}, {high}}}, {address};",
        f"and.b32 {high}, {high}, %kaas_mask;",
        f"or.b32 {high}, {high}, %kaas_base;",
        f"mov.b64 {register}, {{{low}, {high}}};",
    ]


F0 = to_global("%kaas_f0")
SUM = ["add.s64 %kaas_f0, %a, 16;", *to_global("%kaas_f1", "%kaas_f0")]
GENERIC = [
    *to_global("%kaas_f0"),
    "isspacep.shared %kaas_p0, %a;",
    "isspacep.local %kaas_p1, %a;",
    "or.pred %kaas_p0, %kaas_p0, %kaas_p1;",
    "selp.b64 %kaas_f1, %a, %kaas_f0, %kaas_p0;",
]

CASES: dict[str, list[str]] = {
    "ld.global.u32 %r1, [%a+4];": [*F0, "ld.global.u32 %r1, [%kaas_f0+4];"],
    "ld.global.u32 %r1, [%a + -4];": [*F0, "ld.global.u32 %r1, [%kaas_f0+-4];"],
    "ld.global.u32 %r1, [%a - 4];": [*F0, "ld.global.u32 %r1, [%kaas_f0+-4];"],
    "ld.global.u32 %r1, [0x40];": [
        "mov.b64 %kaas_f0, 64;", *to_global("%kaas_f1", "%kaas_f0"), "ld.global.u32 %r1, [%kaas_f1];",
    ],
    "ld.u32 %r1, [%a];": [*GENERIC, "ld.u32 %r1, [%kaas_f1];"],
    "@!%p1 st.u32 [%a], %r1;": [
        *F0, "isspacep.shared %kaas_p0, %a;", "selp.b64 %kaas_f1, %a, %kaas_f0, %kaas_p0;",
        "cvta.local.u64 %kaas_f2, own;", "sub.s64 %kaas_f3, %a, %kaas_f2;", "min.u64 %kaas_f3, %kaas_f3, 60;",
        "add.s64 %kaas_f4, %kaas_f2, %kaas_f3;", "isspacep.local %kaas_p1, %a;",
        "selp.b64 %kaas_f5, %kaas_f4, %kaas_f1, %kaas_p1;", "@!%p1 st.u32 [%kaas_f5], %r1;",
    ],
    "atom.add.u32 %r1, [%a+4], 1;": [
        "add.s64 %kaas_f0, %a, 4;", *to_global("%kaas_f1", "%kaas_f0"), "isspacep.shared %kaas_p0, %kaas_f0;",
        "selp.b64 %kaas_f2, %kaas_f0, %kaas_f1, %kaas_p0;", "atom.add.u32 %r1, [%kaas_f2], 1;",
    ],
    "st.local.v2.u32 [%rd1+8], {%r1, %r2};": [
        "add.s64 %kaas_f0, %rd1, 8;", "mov.u64 %kaas_f1, own;", "sub.s64 %kaas_f2, %kaas_f0, %kaas_f1;",
        "min.u64 %kaas_f2, %kaas_f2, 56;", "add.s64 %kaas_f3, %kaas_f1, %kaas_f2;",
        "st.local.v2.u32 [%kaas_f3], {%r1, %r2};",
    ],
    "st.local.u8 [%r1], %r2;": [
        "mov.u32 %kaas_i0, own;", "sub.s32 %kaas_i1, %r1, %kaas_i0;", "min.u32 %kaas_i1, %kaas_i1, 63;",
        "add.s32 %kaas_i2, %kaas_i0, %kaas_i1;", "st.local.u8 [%kaas_i2], %r2;",
    ],
    "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4}, [%a];": [
        *F0, "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4}, [%kaas_f0];",
    ],
    "ld.global.nc.L1::no_allocate.L2::256B.u32 %r1, [%a];": [
        *F0, "ld.global.nc.L1::no_allocate.L2::256B.u32 %r1, [%kaas_f0];",
    ],
    "st.global.L2::cache_hint.u32 [%a], %r1, %rd1;": [*F0, "st.global.L2::cache_hint.u32 [%kaas_f0], %r1, %rd1;"],
    "atom.global.cas.b128 %q1, [%a], %q1, %q2;": [*F0, "atom.global.cas.b128 %q1, [%kaas_f0], %q1, %q2;"],
    "atom.global.v4.f32.add {%f1, %f2, %f3, %f4}, [%a], {%f1, %f2, %f3, %f4};": [
        *F0, "atom.global.v4.f32.add {%f1, %f2, %f3, %f4}, [%kaas_f0], {%f1, %f2, %f3, %f4};",
    ],
    "red.global.add.noftz.bf16x2 [%a], %r1;": [*F0, "red.global.add.noftz.bf16x2 [%kaas_f0], %r1;"],
    "ld.shared.u32 %r1, [tile+4];": ["ld.shared.u32 %r1, [tile+4];"],
    "ld.shared::cluster.u32 %r1, [%a];": ["ld.shared::cluster.u32 %r1, [%a];"],
    "st.local.u32 [own], %r1;": ["st.local.u32 [own], %r1;"],
    "ld.param.u64 %rd1, [a];": ["ld.param.u64 %rd1, [a];"],
    "prefetch.global.L2::evict_last [%a];": [*F0, "prefetch.global.L2::evict_last [%kaas_f0];"],
    "prefetch.L1 [%a];": [*F0, "prefetch.L1 [%kaas_f0];"],
    "prefetchu.L1 [%a];": [*F0, "prefetchu.L1 [%kaas_f0];"],
    "discard.global.L2 [%a], 128;": [*F0, "discard.global.L2 [%kaas_f0], 128;"],
    "applypriority.global.L2::evict_normal [%a], 128;": [
        *F0, "applypriority.global.L2::evict_normal [%kaas_f0], 128;",
    ],
    "createpolicy.range.global.L2::evict_last.b64 %rd1, [%a], 4096, 8192;": [
        *F0, "createpolicy.range.global.L2::evict_last.b64 %rd1, [%kaas_f0], 4096, 8192;",
    ],
    "cp.async.ca.shared.global.L2::128B [tile], [%a+4], 8, %r1;": [
        *F0, "cp.async.ca.shared.global.L2::128B [tile], [%kaas_f0+4], 8, %r1;",
    ],
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a+16], %r1, [mbar];": [
        *SUM, "min.u32 %kaas_i2, %r1, 262144;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%kaas_f1], %kaas_i2, [mbar];",
    ],
    "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], 64;": [
        *F0, "cp.async.bulk.global.shared::cta.bulk_group [%kaas_f0], [tile], 64;",
    ],
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%a], [tile], %r1;": [
        *F0, "min.u32 %kaas_i2, %r1, 262144;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%kaas_f0], [tile], %kaas_i2;",
    ],
    "cp.async.bulk.prefetch.L2.global [%a], %r1;": [
        *F0, "min.u32 %kaas_i2, %r1, 262144;", "cp.async.bulk.prefetch.L2.global [%kaas_f0], %kaas_i2;",
    ],
    "wmma.load.c.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4}, [%a+16], %r1;": [
        "min.u32 %kaas_i0, %r1, 1048576;", "add.s64 %kaas_f0, %a, 16;", *to_global("%kaas_f1", "%kaas_f0", 1),
        "wmma.load.c.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4}, [%kaas_f1], %kaas_i0;",
    ],
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%a], {%r1, %r2, %r3, %r4}, 16;": [
        *F0, "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%kaas_f0], {%r1, %r2, %r3, %r4}, 16;",
    ],
    "@!%p3 wmma.store.d.sync.aligned.row.m16n16k16.f16 [%a+16], {%r1, %r2, %r3, %r4}, %r1;": [
        "min.u32 %kaas_i0, %r1, 1048576;", "add.s64 %kaas_f0, %a, 16;", "isspacep.shared %kaas_p0, %kaas_f0;",
        "not.pred %kaas_p1, %kaas_p0;", "not.pred %kaas_p2, %p3;", "and.pred %kaas_p0, %kaas_p0, %kaas_p2;",
        "and.pred %kaas_p1, %kaas_p1, %kaas_p2;", "cvta.to.shared.u64 %kaas_f1, %kaas_f0;",
        *to_global("%kaas_f2", "%kaas_f0", 1),
        "@%kaas_p0 wmma.store.d.sync.aligned.row.m16n16k16.shared.f16"
        " [%kaas_f1], {%r1, %r2, %r3, %r4}, %kaas_i0;",
        "@%kaas_p1 wmma.store.d.sync.aligned.row.m16n16k16.global.f16"
        " [%kaas_f2], {%r1, %r2, %r3, %r4}, %kaas_i0;",
    ],
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [tile];": [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [tile];",
    ],
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [mbar], %r1;": [
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [mbar], %r1;",
    ],
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];": [
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
    ],
    "mapa.shared::cluster.u32 %r1, %r2, 1;": ["mapa.shared::cluster.u32 %r1, %r2, 1;"],
    "cvta.const.u64 %rd1, %a;": ["mov.b64 %rd1, %a;"],
    "bar.sync 0;": ["bar.sync 0;"],
}  # fmt: skip
"""Instruction -> what it becomes."""


@pytest.mark.parametrize("body", CASES)
def test_an_instruction_is_confined(body: str) -> None:
    clusters = "shared::cluster" in body
    wanted = [
        line.replace("isspacep.shared ", "isspacep.shared::cluster ") if clusters else line for line in CASES[body]
    ]
    assert confined(body) == wanted


REFUSED = {
    "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];": "textures and surfaces",
    "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];": "textures and surfaces",
    "txq.width.b32 %r1, [t];": "textures and surfaces",
    "suld.b.1d.b32.trap %r1, [s, {%r1}];": "textures and surfaces",
    "sust.b.1d.b32.trap [s, {%r1}], %r1;": "textures and surfaces",
    "sured.b.add.1d.u32.trap [s, {%r1}], %r1;": "textures and surfaces",
    "suq.width.b32 %r1, [s];": "textures and surfaces",
    "istypep.texref %p1, %rd1;": "textures and surfaces",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%a, {%r1}], [tile];": "tensor maps",
    "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%a, {%r1}], [tile];": "tensor maps",
    "cp.async.bulk.prefetch.tensor.1d.L2.global [%a, {%r1}];": "tensor maps",
    "prefetch.tensormap [%a];": "tensor maps",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%a], %rd1;": "tensor maps",
    "fence.proxy.tensormap::generic.acquire.gpu [%a], 128;": "with an address",
    "multimem.ld_reduce.global.add.f32 %f1, [%a];": "multicast",
    "multimem.red.global.add.f32 [%a], %f1;": "multicast",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tile], 32;": "tensor memory",
    "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [tile], [mbar];": "other clusters",
    "ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%a];": "does not name shared",
    "mbarrier.arrive.b64 %rd1, [%a];": "does not name shared",
    "cp.async.mbarrier.arrive.b64 [%a];": "does not name shared",
    "st.bulk [%a], %rd1, 0;": "does not name shared",
    "st.async.mmio.release.sys.global.u32 [%a], %r1;": "does not name shared",
    "red.async.relaxed.cluster.global.add.u32 [%a], %r1, [%a];": "does not name shared",
    "wmma.load.c.sync.aligned.row.m16n16k16.local.f16 {%r1, %r2, %r3, %r4}, [%a], %r1;": "no matrix in",
    "wmma.load.c.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4}, [%a], 2097152;": "is more than",
    "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], 0x80000000;": "is more than",
    "cp.async.bulk.global.global.bulk_group [%a], [%a], %r1, %r2;": "no copy",
    "cp.async.ca.global.shared [%a], [tile], 4;": "no copy",
    "ld.newspace.u32 %r1, [%a];": ".newspace is not known",
    "ld.global.shared.u32 %r1, [%a];": "both",
    "ld.global.u32 %r1, tile;": "0 addresses",
    "ld.global.u32 %r1, [%a+0x80000000];": "32 bits",
    "ld.global.u32 %r1, [%a-2147483649];": "32 bits",
    "ld.global.u32 %r1, [%a+4+4];": "not understood",
    "ld.global.u32 %r1, [%a+(4)];": "not understood",
    "ld.global.u32 %r1, tile[4];": "not understood",
    "ld.global.u32 %r1, [%h1];": "neither 32 nor 64 bits",
    "ld.global.u32 %r1, [%d1];": "neither 32 nor 64 bits",
    "ld.global.u32 %r1, [%rd8];": "neither a register nor a variable",
    "ld.global.u32 %r1, [tile];": "does not name its state space",
    "ld.u32 %r1, [tile];": "does not name its state space",
    "ld.u32 %r1, [a];": "does not name its state space",
    "add.u32 %r1, %r2, [%a];": "with an address",
    "cvta.to.global.u64 [%rd1], %a;": "with an address",
    "cvta.to.global.u64 %rd1, [a];": "with an address",
    "mov.u64 [%rd1], %a;": "with an address",
    "bra [%rd1];": "with an address",
    "call [%rd1];": "with an address",
    "st.local.u32 [own+64], %r1;": "a store outside of own",
    "st.local.v2.u32 [own+60], {%r1, %r2};": "a store outside of own",
    "st.local.u32 [own+-4], %r1;": "a store outside of own",
    "{ .param .b32 p; st.param.b32 [p+4], %r1; }": "a store outside of p",
    "newop.u32 %r1, [%a];": "newop is not known to be safe",
    "newop.u32 %r1, %r2;": "newop is not known to be safe",
    "bra %rd1;": "no label",
    "brx.idx %r1, nowhere;": "not known",
    "cvta.u32 %r1, %r2;": "no conversion",
    "cvta.global.u32 %r1, %r2;": "no conversion",
    "cvta.to.param.u64 %rd1, %a;": "generic address of a parameter",
    "mov.u64 %rd1, k;": "address of the function k",
    "call malloc, (%rd1);": "a call of malloc",
    "call k, (%rd1);": "a call of a kernel",
    "call tile, (%rd1);": "a call of the variable tile",
    "call %rd1, (%rd1);": "without a prototype",
    "mov.u64 %kaas_base, 0;": "KaaS's own",
    "ld.const.u64 %rd1, [kaas_window];": "KaaS's own",
    "add.u32 %r1, %r2, %r3": "not understood",
    "add.u32 %r1,, %r2;": "not understood",
    "add.u32 %r1, %r2, %r3 @%p1;": "not understood",
    "# line 3": "is not of PTX",
    "add.u32 %r1, %r2, \u00e9;": "is not of PTX",
    'call vprintf, ("%d");': "does not end",
}
"""Statement -> a part of the reason for which it is refused."""


@pytest.mark.parametrize("body", REFUSED)
def test_a_statement_is_refused(body: str) -> None:
    with pytest.raises(CannotFence, match=REFUSED[body]) as refused:
        fence(kernel(f"\n{body}"))
    at = kernel("\n@").split("@")[0].count("\n") + 1
    assert refused.value.line in (at, at + 1, at + 2)  # behind a statement that does not end, the next ones
    assert refused.value.reason in refused.value.message
    assert refused.value.instruction


def test_each_row_of_the_table_is_tested() -> None:
    tested = {*CASES, *REFUSED, "mov.u64 %a, 0;", "brx.idx", "call"}
    plain = {name for name, row in table.ROWS.items() if row.how == table.PLAIN}
    beginnings = {word for body in tested for word in _beginnings(body)}
    assert (
        not table.ROWS.keys() - plain - beginnings - {"cp.async.mbarrier", "ldu", "stmatrix", "tensormap", "wmma.load"}
    )


def _beginnings(body: str) -> set[str]:
    words = body.removeprefix("@!%p1 ").split()[0].strip(";").split(".")
    return {".".join(words[:count]) for count in range(1, len(words) + 1)}


def test_functions_that_may_store_anywhere_on_a_stack_are_named() -> None:
    """They have several variables there, or none, or get the address of their caller's."""
    store = "st.local.u32 [%rd1], %r1;"
    assert fence(kernel(store)).stacks == ()
    assert fence(kernel(store.replace("st.local", "st"), ".func f() { .local .u32 y; ret; }")).stacks == ()
    assert fence(kernel(f"{{ .local .u32 more; }} {store}")).stacks == ("k",)
    assert fence(kernel(f"alloca.u64 %rd1, 16, 8; {store}")).stacks == ("k",)
    assert fence(kernel("stackrestore.u64 %rd1;")).stacks == ("k",)
    called = ".func f(.param .b64 x) { .local .u32 y; .reg .b64 %x; ld.param.u64 %x, [x]; st.u32 [%x], 1; ret; }"
    assert fence(kernel("", called)).stacks == ("f",)
    assert fence(kernel("", called.replace("st.u32", "st.local.u32"))).stacks == ()


def test_generic_addresses_are_not_tested_for_spaces_that_the_module_does_not_name() -> None:
    text = f"{HEADER}.entry k(.param .u64 a) {{ .reg .b64 %a; ld.param.u64 %a, [a]; st.u32 [%a], 1; ret; }}"
    assert "isspacep" not in fence(text).ptx
    assert "isspacep.shared" in fence(text.replace("ld.param", ".shared .b8 s; ld.param")).ptx
    assert "isspacep.local" in fence(text.replace("ld.param", ".local .b32 l; ld.param")).ptx


def test_an_address_is_confined_once_in_a_basic_block() -> None:
    body = "ld.global.u32 %r1, [%a]; st.global.u32 [%a+8], %r1; add.s64 %rd1, %a, 8; ld.global.u32 %r2, [%a+-8];"
    assert sum("%kaas_base" in line for line in confined(body)) == 1


@pytest.mark.parametrize(
    "between", ["add.s64 %a, %a, 8;", "L: ", "@%p1 mov.b64 %a, 8;", "mov.b64 {%r1, %r2}, %a; mov.b64 %a, {%r1, %r2};"]
)
def test_an_address_is_confined_again_after_a_change(between: str) -> None:
    body = f"ld.global.u32 %r1, [%a]; {between} ld.global.u32 %r2, [%a];"
    assert sum("%kaas_base" in line for line in confined(body)) == 2


@pytest.mark.processes
def test_nvidias_assembler_takes_what_instructions_become(ptxas: str, tmp_path: Path) -> None:
    ended = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True)
    assert "ptxas" in ended.stdout
    bodies = [f"{{ {body} }}" for body in CASES if "0x40" not in body]
    path = tmp_path / "confined.ptx"
    path.write_text(fence(kernel("\n".join(bodies))).ptx)
    ended = subprocess.run(
        [ptxas, "-arch=sm_100a", str(path), "-o", str(tmp_path / "made")], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
