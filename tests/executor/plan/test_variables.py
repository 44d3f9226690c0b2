"""The variables of a code image that kernels can write, by name; the result also says if there may be more."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kaas.executor.plan.variables import Variable, Variables, variables_of
from kaas.ktask.library import Image, Library
from tests.lanes import spread

KERNELS = Path(__file__).parents[1] / "kernels"
PTX = (KERNELS / "globals.ptx").read_text()
CUBIN = (KERNELS / "globals.cubin").read_bytes()
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
OF_THE_KERNELS = {"calls", "limit", "hidden", "scratch", "pointer", "read_only", "_ZZ3idsvE4next", "_ZZ5countE5local"}
ZEROS = {"calls", "scratch"}
OPTIONS, ARCHITECTURES = ("-cubin", "-ptx", "-fatbin"), ("sm_75", "sm_90a", "sm_100", "sm_120")


def of_ptx(text: str) -> Variables:
    return variables_of(Library.from_ptx(HEAD + text).images[0])


def zero(name: str) -> Variable:
    return Variable(name, zero=True)


def initialised(name: str) -> Variable:
    return Variable(name, zero=False)


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (".global .u32 a;", [zero("a")]),
        (".visible .global .align 8 .f64 a = 0d4004000000000000;", [initialised("a")]),
        (".weak .global .align 256 .b8 a[16];", [zero("a")]),
        (".common .global .u32 a;", [zero("a")]),
        (".extern .global .u32 a;", [zero("a")]),
        (".global .b8 a[2][3] = {{1, 2, 3}, {4, 5, 6}};", [initialised("a")]),
        (".global .u32 a[] = {1, 2};", [initialised("a")]),
        (".global .v4 .f32 a = {1.0, 2.0, 3.0, 4.0}, b;", [initialised("a"), zero("b")]),
        (".global .u64 a[2] = {generic(b), b+8}; .global .u32 b;", [initialised("a"), zero("b")]),
        (".global .attribute(.managed) .align 4 .u32 a = 5;", [Variable("a", zero=False, managed=True)]),
        (".global .attribute(.managed, .unified(1, 2)) .u32 $a$1;", [Variable("$a$1", zero=True, managed=True)]),
        (".global\n  .align 4\n  .u32 a\n;", [zero("a")]),
        ("/* .global .u32 no; */ .global .u32 a; // .global .u32 no;", [zero("a")]),
        ('.file 1 ".global .u32 no;"\n.global .u32 a;', [zero("a")]),
        (".const .u32 no = 3; .shared .u32 neither; .global .texref nor;", []),
        (".entry f(.param .u64 .ptr .global .align 4 p) { ld.global.u32 r, [a]; ld .global.u32 r, [a]; }", []),
        (".entry f() { .shared .u32 s; cvta.to.global.u64 a, b; } .global .u32 a;", [zero("a")]),
    ],
)
def test_declarations_in_ptx(declaration: str, expected: list[Variable]) -> None:
    assert of_ptx(declaration) == Variables(tuple(expected))


@pytest.mark.parametrize(
    "declaration",
    [
        ".entry f() { .reg .u32 r; .global .u32 a; }",
        ".entry f() {\n.loc 1 2 3\n.global .u32 a = 4;\n}",
        ".entry f() { $L: .global .u32 a; }",
        ".global .u32 a; .global .u32 5;",
    ],
)
def test_the_variables_of_ptx_that_hides_one_are_incomplete(declaration: str) -> None:
    assert not of_ptx(declaration).complete


@pytest.mark.parametrize("image", [Image("ptx", PTX.encode()), Image("cubin", CUBIN)], ids=["ptx", "cubin"])
def test_text_and_symbol_table_have_the_same_variables(image: Image) -> None:
    variables = variables_of(image)
    assert variables.complete
    assert set(variables.found) == {Variable(name, name in ZEROS) for name in OF_THE_KERNELS}


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(("option", "architecture"), spread(product(OPTIONS, ARCHITECTURES), 4))
def test_images_of_nvcc(option: str, architecture: str, tmp_path: Path) -> None:
    source, made = tmp_path / "all.cu", tmp_path / "made"
    source.write_text((KERNELS / "globals.cu").read_text() + "__managed__ int both = 3;\n")
    subprocess.run(["nvcc", option, f"-arch={architecture}", source, "-o", made], check=True, capture_output=True)
    variables = variables_of(Library.from_file(made).images[0])
    assert variables.complete
    assert {variable.name for variable in variables.found} == {*OF_THE_KERNELS, "both"}
    assert [variable.name for variable in variables.found if variable.managed] == ["both"]


def fatbin(*entries: tuple[int, int, bytes]) -> Image:
    """Return a fatbin of these (kind, flags, payload)."""
    body = b""
    for kind, flags, payload in entries:
        padded = payload + bytes(-len(payload) % 8)
        body += struct.pack("<HHIQIIQQQQQ", kind, 0x101, 64, len(padded), len(payload), 0, 0, 0, flags, 0, 0) + padded
    return Library.from_fatbin(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body).images[0]


@pytest.mark.parametrize(("flags", "package"), [(0x8011, "zstandard"), (0x2011, "lz4.block")])
def test_a_fatbin_that_nothing_here_decompresses(monkeypatch: pytest.MonkeyPatch, flags: int, package: str) -> None:
    """A GPU can run it."""
    monkeypatch.setitem(sys.modules, package, None)
    variables = variables_of(fatbin((2, 0x11, CUBIN), (1, flags, b"compressed")))
    assert variables == replace(variables_of(fatbin((2, 0x11, CUBIN))), complete=False)


def test_a_fatbin_has_the_variables_of_all_its_images() -> None:
    text = HEAD.encode() + b".global .u32 calls = 4; .global .u32 more;\0"
    variables = variables_of(fatbin((1, 0x8011, zstandard.compress(text)), (2, 0x11, CUBIN)))
    assert variables.complete
    by_name = {variable.name: variable for variable in variables.found}
    assert by_name.keys() == {*OF_THE_KERNELS, "more"}
    assert (by_name["more"].zero, by_name["calls"].zero) == (True, False)


@pytest.mark.parametrize(
    "entry",
    [(1, 0x2011, b"\x13\n\x01\0"), (8, 0x11, b"BC"), (1, 0x8011, b"(\xb5/\xfd no"), (1, 0x11, b"\xff"), (2, 17, b"?")],
    ids=["corrupt for speed", "intermediate", "corrupt", "not text", "no cubin"],
)
def test_the_variables_of_a_fatbin_with_an_unreadable_image_are_incomplete(entry: tuple[int, int, bytes]) -> None:
    variables = variables_of(fatbin((2, 0x11, CUBIN), entry))
    assert not variables.complete
    assert {variable.name for variable in variables.found} == OF_THE_KERNELS


def symbols_of(cubin: bytes) -> list[tuple[int, str]]:
    """Return (place, name) of the symbols of a cubin that are objects."""
    (sections,) = struct.unpack_from("<Q", cubin, 40)
    each, count = struct.unpack_from("<HH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections + number * each) for number in range(count)]
    table = next(header for header in headers if header[1] == 2)
    names = cubin[headers[table[6]][4] :]
    return [
        (at, names[struct.unpack_from("<I", cubin, at)[0] :].split(b"\0", 1)[0].decode())
        for at in range(table[4], table[4] + table[5], 24)
        if cubin[at + 4] & 15 == 1
    ]


def test_the_variables_of_a_stripped_cubin_are_incomplete() -> None:
    assert {name for _, name in symbols_of(CUBIN)} == OF_THE_KERNELS
    for names in (ZEROS, OF_THE_KERNELS - ZEROS):
        stripped = bytearray(CUBIN)
        for at, name in symbols_of(CUBIN):
            if name in names:
                stripped[at : at + 24] = bytes(24)
        variables = variables_of(Image("cubin", bytes(stripped)))
        assert not variables.complete
        assert {variable.name for variable in variables.found} == OF_THE_KERNELS - names


def test_the_variables_of_a_cubin_with_two_of_one_name_are_incomplete() -> None:
    (first, _), (second, name) = symbols_of(CUBIN)[:2]
    renamed = bytearray(CUBIN)
    renamed[first : first + 4] = renamed[second : second + 4]
    variables = variables_of(Image("cubin", bytes(renamed)))
    assert not variables.complete
    assert name in {variable.name for variable in variables.found}


@given(st.data())
def test_corrupt_cubins_are_never_an_error(data: st.DataObject) -> None:
    image = bytearray(CUBIN)
    for at in data.draw(st.lists(st.integers(20, len(image) - 1), min_size=1, max_size=20)):
        image[at] = data.draw(st.integers(0, 255))
    assert isinstance(variables_of(Image("cubin", bytes(image[: data.draw(st.integers(0, len(image)))]))), Variables)


@given(st.lists(st.sampled_from([".global", ".u32", "a", "b", "=", "{", "}", "(", ")", ";", ",", "1", "[", "]", "\n"])))
def test_strange_ptx_is_never_an_error(words: list[str]) -> None:
    assert isinstance(variables_of(Image("ptx", " ".join(words).encode())), Variables)
