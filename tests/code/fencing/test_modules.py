"""Variables, constants, printf and functions by address, of modules whose kernels stay in a window."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from kaas.code.fencing import fence
from kaas.errors import CannotFence
from softgpu.tests.compiler.corpus.case import Launch
from softgpu.tests.compiler.harness import HEADER
from tests.code.fencing.checks import unconfined
from tests.code.fencing.window import launch

pytestmark = pytest.mark.usefixtures("softgpu")

ROOT = Path(__file__).parents[3]
DECLARED = ".reg .b64 %o, %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .pred %p<4>; ld.param.u64 %o, [o];\n"


def kernel(body: str, variables: str = "", name: str = "k") -> str:
    return f"{variables}\n.visible .entry {name}(.param .u64 o, .param .u32 n)\n{{{DECLARED}{body}\nret;}}\n"


def result(ptx: str, number: int = 0, *, count: int = 1, launches: int = 1) -> list[int]:
    """Return the words that a kernel k writes."""
    one = Launch("k", 1, 1, ["o", np.uint32(number)])
    found = launch(HEADER + ptx, {"o": np.zeros(max(count, 4), np.uint32)}, *[one] * launches)
    return [int(word) for word in found["o"][:count]]


# --- variables


def test_variables_keep_their_values_between_launches() -> None:
    variables = ".global .align 4 .u32 calls = 40; .visible .global .u32 other;"
    body = "ld.global.u32 %r1, [calls]; add.u32 %r1, %r1, 1; st.global.u32 [calls], %r1; st.global.u32 [%o], %r1;"
    assert result(kernel(body, variables), launches=3) == [43]


def test_variables_point_to_each_other() -> None:
    variables = """
.global .align 8 .u64 first[3] = {generic(second)+4, second, 0x10};
.global .align 4 .u32 second[2] = {7, 8};
.const .align 8 .u64 fixed = generic(second);
"""
    body = """
ld.global.u64 %rd1, [first]; ld.u32 %r1, [%rd1]; st.global.u32 [%o], %r1;
mov.u64 %rd2, first; cvta.global.u64 %rd2, %rd2; ld.u64 %rd3, [%rd2+8]; ld.global.u32 %r2, [%rd3];
st.global.u32 [%o+4], %r2; ld.global.u32 %r3, [first+16]; st.global.u32 [%o+8], %r3;
ld.const.u64 %rd4, [fixed]; ld.u32 %r4, [%rd4+4]; st.global.u32 [%o+12], %r4;
"""
    assert result(kernel(body, variables), count=4) == [8, 7, 16, 8]


def test_initial_values_of_all_forms() -> None:
    variables = """
.global .align 4 .f32 reals[4] = {0f3F800000, 1.5, -2.0e0, 0};
.global .align 1 .b8 bytes[4] = {1, 255, -1, 0x7f}; .global .u16 half = 010; .global .v2 .u32 pair = {3, 4};
.global .f64 wide[1] = {0d3FF8000000000000}; .global .b8 grid[2][2] = {{1, 2}, {3, 4}}, after = 9;
.global .s64 less = -5;
"""
    block = fence(HEADER + variables).variables
    image = block.at(0).ljust(block.size_bytes, b"\0")
    found = {name: image[offset : offset + size] for name, (offset, size) in block.places.items()}
    assert found == {
        "reals": np.array([1, 1.5, -2, 0], np.float32).tobytes(), "bytes": bytes([1, 255, 255, 127]),
        "half": b"\x08\0", "pair": bytes([3, 0, 0, 0, 4, 0, 0, 0]), "wide": np.float64(1.5).tobytes(),
        "grid": bytes([1, 2, 3, 4]), "after": b"\x09", "less": np.int64(-5).tobytes(),
    }  # fmt: skip
    assert all(offset % 4 == 0 for name, (offset, _) in block.places.items() if name in ("reals", "pair"))
    assert block.alignment == 8


def test_variables_of_functions_and_without_initial_values() -> None:
    body = """
.global .align 4 .u32 mine[4]; { .global .align 4 .u32 mine[2]; st.global.u32 [mine+4], 5; }
st.global.u32 [mine+4], 6; ld.global.u32 %r1, [mine+4]; st.global.u32 [%o], %r1;
"""
    ptx = fence(HEADER + kernel(body))
    assert ptx.variables.size_bytes == 24
    assert not re.search(r"\.global .*mine", ptx.ptx)
    assert result(kernel(body)) == [6]


def test_tables_of_constants_are_read_by_index() -> None:
    """Those read by a constant place stay constants; the others become global memory."""
    variables = ".const .align 4 .u32 table[4] = {5, 6, 7, 8}; .const .align 4 .u32 plain[2] = {50, 60};"
    body = """
ld.param.u32 %r1, [n]; mul.wide.u32 %rd1, %r1, 4; mov.u64 %rd2, table; add.s64 %rd2, %rd2, %rd1;
ld.const.u32 %r2, [%rd2]; ld.const.u32 %r3, [table+4]; ld.const.u32 %r4, [plain+4];
add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%o], %r2;
"""
    assert result(kernel(body, variables), 2) == [7 + 6 + 60]
    ptx = fence(HEADER + kernel(body, variables))
    assert ptx.variables.places.keys() == {"table"}
    assert "ld.const.u32 %r4, [plain+4];" in ptx.ptx


@pytest.mark.parametrize("access", ["[plain+8]", "[plain+-4]", "[plain+6]"])
def test_constants_outside_of_a_variable_are_not_read(access: str) -> None:
    variables = ".const .align 4 .u32 plain[2] = {50, 60};"
    ptx = fence(HEADER + kernel(f"ld.const.u32 %r1, {access};", variables))
    assert "ld.const.u32 %r1" not in ptx.ptx
    assert ptx.variables.places == {"plain": (0, 8)}


def test_a_variable_of_a_function_is_not_taken_for_a_constant_of_its_name() -> None:
    variables = ".const .align 4 .u32 both[2] = {50, 60};"
    body = "{ .global .align 4 .u32 both[2]; st.global.u32 [both], 5; } ld.const.u32 %r1, [both];"
    assert ".global .align 4 .u32 both" not in fence(HEADER + kernel(body, variables)).ptx


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        (".extern .global .u32 x;", "another module"),
        (".global .texref t;", "unknown form"),
        (".global .align 3 .u32 x;", "alignment"),
        (".global .u32 x[2] = {1, 2, 3};", "more initial values"),
        (".global .u32 x = y;", "not of 8 bytes"),
        (".global .u64 x = y;", "address of y"),
        (".global .b8 x[2000000000];", "bytes"),
        (".global .b8 x[900000000]; .global .b8 y[900000000];", "bytes of variables"),
        (".global .u32 x = 0f3F800000;", "no initial value"),
        (".global .u32 x; .global .u32 x;", "there twice"),
        (".global .u64 x = k;", "address of k"),
    ],
)
def test_variables_that_are_refused(variables: str, why: str) -> None:
    with pytest.raises(CannotFence, match=why):
        fence(HEADER + kernel("", variables))


# --- printf


OUTPUT = (ROOT / "softgpu/softgpu/tests/compiler/kernels/output.ptx").read_text()
HEAD, *ENTRIES = re.split(r"(?=^\s*\.visible \.entry\b)", OUTPUT, flags=re.M)


def entries(*names: str) -> str:
    """Return a module with some of the kernels that print."""
    return HEAD + "".join(text for text in ENTRIES if any(f".entry {name}(" in text for name in names))


def test_kernels_print(capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    found = launch(entries("lanes", "reals"), {"results": np.zeros(90, np.int32)},
                   Launch("lanes", 2, 45, ["results", np.int32(70)]),
                   Launch("reals", 1, 1, [np.float32(0.125), np.float64(-0.125)]))  # fmt: skip
    ctypes.CDLL(None).fflush(None)
    at = np.arange(90)
    chosen = (at % 3 == 1) & (at < 70)
    assert (found["results"] == np.where(chosen, 2, 0)).all()
    expected = [f"thread {i}: {i * i}" for i in np.flatnonzero(chosen)]
    expected.append(f"{0.125:f}|{0.125:e}|{-0.125:g}".split("|")[0])
    printed = "".join(capfd.readouterr()).splitlines()
    assert [line for line in printed if line.startswith("thread")] == sorted(expected[:-1], key=printed.index)
    assert any(line.startswith("0.125000|") for line in printed)


PRINTF = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
CALL = """
{{ .param .b64 p0; {first}; .param .b64 p1; {second}; .param .b32 r; {between}
call.uni (r), vprintf, (p0, p1); ld.param.b32 %r1, [r]; }}
"""
FORMAT = f".global .align 1 .b8 format[8] = {{{', '.join(str(byte) for byte in b'<%d>')}}};\n"


def printing(body: str = "", **parts: str) -> str:
    given = {"first": "st.param.b64 [p0], %rd1", "second": "st.param.b64 [p1], %rd2", "between": ""} | parts
    before = "mov.u64 %rd1, format; cvta.global.u64 %rd1, %rd1; .local .align 8 .b8 own[8]; st.local.u32 [own], 7;"
    before += "mov.u64 %rd2, own; cvta.local.u64 %rd2, %rd2;"
    return kernel(before + body + CALL.format(**given), PRINTF + FORMAT)


def test_a_format_that_the_kernel_overwrites_is_printed_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    result(printing(f"st.global.u32 [format], {int.from_bytes(b'%s%s', 'little')};"))
    ctypes.CDLL(None).fflush(None)
    assert "<7>" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("ptx", "why"),
    [
        (printing(first="st.param.b64 [p0], %o"), "no constant"),
        (printing(first="@%p1 st.param.b64 [p0], %rd1"), "not known"),
        (printing(between="st.param.b32 [p0+4], %r1;"), "not known"),
        (printing(between="mov.b64 %rd3, p0; st.param.b64 [%rd3], %o;"), "by its address"),
        (printing("mov.b64 %rd1, %o;"), "no constant"),
        (printing("add.s64 %rd1, %rd1, 8;"), "no constant"),
        (printing().replace("60, 37, 100", "60, 37, 115"), "printf of %s"),
        (printing().replace("60, 37, 100", "60, 37, 110"), "printf of %n"),
        (printing().replace("60, 37, 100", "37, 42, 115"), r"printf of %\*s"),
        (printing().replace("(.param .b64 a", "(.param .b32 x, .param .b64 a"), "other types"),
        (printing().replace(".param .b64 a", ".param .b32 a"), "other types"),
        (printing(first="st.param.b32 [p0], %rd1"), "64 bits"),
    ],
)
def test_a_printf_that_could_read_elsewhere_is_refused(ptx: str, why: str) -> None:
    with pytest.raises(CannotFence, match=why):
        fence(HEADER + ptx)


def test_asserts_keep_their_texts() -> None:
    ptx = fence(entries("checked")).ptx
    assert ptx.count("_text_") >= 3
    assert "__assertfail" in ptx


# --- calls

FUNCTIONS = """
.func (.param .b32 r) one(.param .b32 x) {
.reg .b32 %x; ld.param.u32 %x, [x]; add.u32 %x, %x, 1; st.param.b32 [r], %x; ret; }
.func (.param .b32 r) two(.param .b32 x) {
.reg .b32 %x; ld.param.u32 %x, [x]; mul.lo.u32 %x, %x, 2; st.param.b32 [r], %x; ret; }
.func (.param .b32 r) wider(.param .b64 x) { st.param.b32 [r], 99; ret; }
.func (.param .b32 r) never(.param .b32 x) { st.param.b32 [r], 666; ret; }
.global .align 8 .u64 pointers[3] = {one, two, wider};
"""
INDIRECT = """
{ .param .b32 p; st.param.b32 [p], 20; .param .b32 r;
prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
call (r), %rd1, (p), prototype; ld.param.b32 %r1, [r]; } st.global.u32 [%o], %r1;
"""


@pytest.mark.parametrize(("which", "wanted"), [(0, 21), (1, 40)])
def test_functions_are_called_by_address(which: int, wanted: int) -> None:
    taken = f"ld.global.u64 %rd1, [pointers+{8 * which}];"
    assert result(kernel(taken + INDIRECT, FUNCTIONS)) == [wanted]
    taken = f"mov.u64 %rd1, {('one', 'two')[which]};"
    assert result(kernel(taken + INDIRECT, FUNCTIONS)) == [wanted]


def test_a_list_of_functions_bounds_its_calls() -> None:
    listed = INDIRECT.replace("prototype: .callprototype (.param .b32 _) _ (.param .b32 _);",
                              "prototype: .calltargets two, never;")  # fmt: skip
    assert result(kernel(f"ld.global.u64 %rd1, [pointers+8];{listed}", FUNCTIONS)) == [40]
    assert result(kernel(f"ld.global.u64 %rd1, [pointers];{listed}", FUNCTIONS)) == [40]


@pytest.mark.parametrize("address", [0, 3, 4, 77, 1 << 40, -1])
def test_another_address_calls_a_function_of_the_module_that_fits(address: int) -> None:
    assert result(kernel(f"mov.b64 %rd1, {address};{INDIRECT}", FUNCTIONS)) == [21]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("call (r), %rd1, (p), nothing;", "without a prototype"),
        (".reg .b64 one; mov.b64 one, %o;" + INDIRECT, "something else"),
        ("one: " + INDIRECT, "something else"),
        (INDIRECT.replace("_ (.param .b32 _)", "_ (.param .b32 _, .param .b32 _)"), "no function of the module fits"),
        ("mov.u64 %rd1, vprintf;", "address of"),
        ("mov.u32 %r1, one;", "address of"),
    ],
)
def test_a_call_that_could_go_elsewhere_is_refused(body: str, why: str) -> None:
    with pytest.raises(CannotFence, match=why):
        fence(HEADER + kernel(body, FUNCTIONS + PRINTF))


@pytest.mark.parametrize(("index", "wanted"), [(0, 10), (1, 11), (2, 12), (3, 12), (1 << 31, 12)])
def test_a_branch_by_an_index_outside_of_its_table_goes_to_the_last_target(index: int, wanted: int) -> None:
    body = """
ld.param.u32 %r1, [n]; targets: .branchtargets a, b, c; brx.idx %r1, targets;
a: mov.u32 %r2, 10; bra end; b: mov.u32 %r2, 11; bra end; c: mov.u32 %r2, 12; end: st.global.u32 [%o], %r2;
"""
    assert result(kernel(body), index) == [wanted]


def test_parameters_whose_address_is_taken_are_copied() -> None:
    """Also parts of them, and what NVRTC converts twice."""
    body = """
mov.b64 %rd1, n; cvta.param.u64 %rd2, %rd1; cvta.param.u64 %rd3, %rd2; ld.u32 %r1, [%rd3];
mov.b64 %rd4, o; add.s64 %rd5, %rd4, 4; cvta.param.u64 %rd6, %rd5; ld.u32 %r2, [%rd6]; ld.param.u32 %r3, [o+4];
setp.eq.u32 %p1, %r2, %r3; selp.u32 %r2, 100, 0, %p1; add.u32 %r1, %r1, %r2; st.global.u32 [%o], %r1;
"""
    assert result(kernel(body), 7) == [107]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER.replace("64\n", "32\n"), "64 bits"),
        (HEADER.replace(".address_size 64", ""), "this is not PTX"),
        ("", "this is not PTX"),
        (HEADER + ".entry k(.param .u64 .ptr .shared .align 4 p) {}", "another state space"),
        (HEADER + ".entry k() { ret; } .entry k() { ret; }", "there twice"),
        (HEADER + ".entry k() { ret;", "ends inside"),
        (HEADER + ".func f(); .newdirective x;", "not understood"),
        (HEADER + ".alias f, g;", "stand for"),
    ],
)
def test_modules_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(CannotFence, match=why):
        fence(text)


def test_a_window_is_checked() -> None:
    made = fence(HEADER + ".global .u64 x;")
    window = 1 << 40
    assert len(made.values(window, 8 << 30, window + 64)) == 24
    for base, size, block in (
        (window, 2 << 30, window), (window, 5 << 30, window), (window + (4 << 30), 8 << 30, window + (4 << 30)),
        (window, 8 << 30, window - 8), (window, 8 << 30, window + (8 << 30) - 4),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no window"):
            made.values(base, size, block)


def test_recursive_functions_stay_in_the_window() -> None:
    function = """
.func (.param .b32 r) down(.param .b32 x, .param .b64 o) {
.reg .b32 %x, %y; .reg .b64 %o; .reg .pred %p; ld.param.u32 %x, [x]; ld.param.u64 %o, [o];
st.global.u32 [%o], %x; mov.u32 %y, 0; setp.eq.u32 %p, %x, 0; @%p bra end; sub.u32 %y, %x, 1;
{ .param .b32 a; st.param.b32 [a], %y; .param .b64 b; st.param.b64 [b], %o; .param .b32 c;
call (c), down, (a, b); ld.param.b32 %y, [c]; }
end: add.u32 %y, %y, %x; st.param.b32 [r], %y; ret; }
"""
    body = """
ld.param.u32 %r1, [n]; { .param .b32 a; st.param.b32 [a], %r1; .param .b64 b; st.param.b64 [b], %o; .param .b32 c;
call (c), down, (a, b); ld.param.b32 %r2, [c]; } st.global.u32 [%o+4], %r2;
"""
    assert unconfined(fence(HEADER + kernel(body, function)).ptx) == []
