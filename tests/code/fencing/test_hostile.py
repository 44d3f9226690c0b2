"""Texts that are broken or made to mislead: refused by CannotFence, or confined."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.code.fencing import Fenced, fence
from kaas.errors import CannotFence
from softgpu.ptx.model import PtxError
from softgpu.tests.compiler.fuzz import mutations
from softgpu.tests.compiler.harness import HEADER
from tests.code.fencing.checks import unconfined
from tests.code.fencing.test_table import CASES, REFUSED, kernel
from tests.lanes import spread

ROOT = Path(__file__).parents[3]
SMALL = [text for text in mutations.sources() if len(text) < 12_000]


def attempt(text: str) -> Fenced | None:
    """Return the confined text; None if it is refused. A text that softgpu's parser takes has no stray address."""
    try:
        made = fence(text)
    except CannotFence as refused:
        return None if refused.line >= 1 and refused.reason else pytest.fail(f"{refused} without a line")
    assert not unconfined_if_read(made.ptx)
    return made


def unconfined_if_read(ptx: str) -> list[str]:
    try:
        return unconfined(ptx)
    except PtxError:
        return []  # no compiler takes this text


@given(seed=st.integers(0, 1 << 30))
def test_changed_texts(seed: int) -> None:
    chance = random.Random(seed)
    text = chance.choice(SMALL)
    for _ in range(chance.randint(1, 3)):
        text = mutations._changed(text, chance)
    attempt(text)


@given(number=st.integers(0, 1 << 30))
def test_bad_images(number: int) -> None:
    content = mutations.image(7, number)
    if len(content) < 20_000:
        attempt(content.decode("latin-1"))


@given(st.text(st.characters(max_codepoint=255), max_size=100))
def test_any_text(text: str) -> None:
    attempt(text)
    attempt(kernel(text))


WORDS = [*CASES, *REFUSED, "{", "}", ";", "/*", "*/", "//", '"', ".reg .b64 %a;", ".shared .b8 a[4];", ".const .u32 c;",
         ".global .u32 g;", "ld.const.u32 %r1, [c];", "mov.u64 %rd1, g;", "L:", "bra L;", ".loc 1 2 3", "\n", "\r",
         '.pragma "nounroll";', ".section .debug_str {", "@%p1", "ld.global.u32 %r1, [%a];", "[%a]", ","]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_statements_in_any_order(words: list[str]) -> None:
    attempt(kernel(" ".join(words)))
    attempt(kernel("\n".join(words), " ".join(words)))


@given(st.sampled_from(SMALL), st.data())
def test_cut_texts(text: str, data: st.DataObject) -> None:
    attempt(text[: data.draw(st.integers(0, len(text)))])


HIDDEN = "ld.global.u32 %r1, [%a];"


@pytest.mark.parametrize(
    "body",
    [
        f"// {HIDDEN}", f"/* {HIDDEN} */", f"// \r {HIDDEN}", f"/* // */ {HIDDEN}", f"// /*\n{HIDDEN} // */",
        f'.file 9 "/*" {HIDDEN} // "', f'.file 9 "//" {HIDDEN}', f"/* \\*/ {HIDDEN}", f"/*/ {HIDDEN} /*/",
        f"add.u32 %r1, %r2, 3;{HIDDEN}", f"add.u32 %r1, %r2, 3; {{ {HIDDEN} }}", f"L:{HIDDEN}", f"L: {HIDDEN} M:",
        f'.pragma "nounroll"; {HIDDEN}', f".loc 1 2 3 {HIDDEN}",
        f".loc 1 2 3, function_name $L, inlined_at 1 2 3 {HIDDEN}",
        f".section .debug_str {{ .b8 1 }} {HIDDEN}", f"@%p1 {HIDDEN}", f"@!%p1 {HIDDEN}", f"@! %p1 {HIDDEN}",
        HIDDEN.replace(" ", "\n"), HIDDEN.replace(",", " , "), HIDDEN.replace(".global", " .global"),
        HIDDEN.replace("[%a]", "[ %a ]"), HIDDEN.replace("[%a]", "[\t%a\n+ 4 ]"), f"{HIDDEN}\0 }}",
        f"\f{HIDDEN}\v",
    ],
)  # fmt: skip
def test_an_access_that_hides_is_confined_refused_or_left_out(body: str) -> None:
    made = attempt(kernel(body))
    if made is not None:
        assert "[%a" not in made.ptx
        assert "//" not in made.ptx
        assert "/*" not in made.ptx


@pytest.mark.parametrize(
    "text",
    spread([
        "/*" * 500_000, "/**/" * 200_000, '"' * 1_000_001, "{" * 100_000, kernel("{" * 100_000 + "}" * 100_000),
        kernel(" " * 3_000_000), kernel("\n" * 1_000_000), kernel(";" * 1_000_000), kernel("a" * 3_000_000),
        kernel("ld.global.u32 %r1, [%a" + " " * 300_000 + "x];"), kernel("ld.global.u32 %r1, " + "[" * 300_000 + ";"),
        kernel("add.u32 " + "," * 300_000 + ";"), kernel("add.u32 " + "a " * 15_000 + ";"),
        kernel("add" + ".u32" * 300_000 + ";"), kernel("@" * 300_000 + ";"),
        kernel("mov.u32 %r1, " + "9" * 20_000 + ";"),
        kernel(".reg .b64 " + ",".join(f"%x{n}<9>" for n in range(100_000)) + ";"),
        kernel(".reg .b64 %x<" + "9" * 10_000 + ">;"),
        kernel("", ".global .b8 x[] = {" + "1," * 1_000_000 + "1};"),
        kernel("", ".global .b8 x" + "[2]" * 100_000 + ";"),
        kernel("", ".global .b8 x[" + " " * 300_000 + ";"), kernel("", ".global " + ".align 8 " * 100_000 + ".b8 x;"),
        kernel("", ".global .b8 " + ",".join(f"x{n}" for n in range(100_000)) + ";"),
        HEADER + ".entry k(" + ".param .u64 p," * 20_000 + ") {}", HEADER + ".entry k()" + " a" * 1_000_000 + "!",
        HEADER + ".entry k()" + " .maxntid 1" * 300_000 + "{}", HEADER + ".visible " * 300_000,
        HEADER + "".join(f".func f{n}() {{ mov.u64 %a, f{n}; }}\n" for n in range(3_000)),
        kernel("".join(f"L{n}: p{n}: .callprototype _; call %a, p{n};" for n in range(3_000)),
               "".join(f".func f{n}() {{ ret; }}" for n in range(300)) +
               ".global .u64 x[] = {" + ",".join(f"f{n}" for n in range(300)) + "};"),
        HEADER + "".join(f".func f{n}() {{ ret; }}\n" for n in range(40_000)) +
        ".global .u64 x[] = {" + ",".join(f"f{n}" for n in range(40_000)) + "};",
    ], 10),
    ids=range(30),
)  # fmt: skip
@pytest.mark.slow
def test_enormous_texts_end(text: str) -> None:
    attempt(text) if len(text) < 1_000_000 else _only(text)


def _only(text: str) -> None:
    try:
        fence(text)
    except CannotFence:
        return


def test_confined_text_is_refused_as_input() -> None:
    """A tenant cannot hand in a text that uses the window's own values."""
    with pytest.raises(CannotFence, match="KaaS's own"):
        fence(fence(kernel("ld.global.u32 %r1, [%a];")).ptx)


def test_the_lines_of_errors_are_those_of_the_text() -> None:
    text = kernel("/* one\n two */ // three\n\nnewop.u32 %r1, [%a];")
    line = text[: text.index("newop")].count("\n") + 1
    with pytest.raises(CannotFence) as refused:
        fence(text)
    assert refused.value.line == line
    assert refused.value.instruction == "newop.u32 %r1, [%a]"


def test_all_other_text_stays() -> None:
    """The instructions of a text without memory are the same, in their order."""
    body = "add.u32 %r1, %r2, -3; @%p1 bra L; setp.eq.u32 %p1|%p2, %r1, %r2; L: mov.b64 {%r1, %r2}, %rd1; "
    body += "{ .reg .u32 %x<3>; }"
    made = fence(kernel(body)).ptx
    places = [re.search(re.escape(part), made) for part in ("add.u32 %r1, %r2, -3;", "@%p1 bra L;",
              "setp.eq.u32 %p1|%p2, %r1, %r2;", "L:", "mov.b64 {%r1, %r2}, %rd1;", ".reg .u32 %x<3>;")]  # fmt: skip
    assert all(place is not None for place in places)
    assert all(one.start() < other.start() for one, other in pairwise(places) if one and other)


@pytest.mark.parametrize(
    ("made", "other"),
    [
        ("[%kaas_f0]", "[%a]"),
        ("and.b32 %kaas_i1, %kaas_i1, %kaas_mask;", ""),
        ("or.b32 %kaas_i1, %kaas_i1, %kaas_base;", ""),
        ("mov.b64 %kaas_f0, {%kaas_i0, %kaas_i1};", "mov.b64 %kaas_f0, %a;"),
    ],
)
def test_the_check_of_these_tests_finds_addresses_that_are_not_confined(made: str, other: str) -> None:
    ptx = fence(kernel("ld.global.u32 %r1, [%a];")).ptx
    assert made in ptx
    assert unconfined(ptx.replace(made, other))
