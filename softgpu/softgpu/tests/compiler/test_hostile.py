"""Images that are to exhaust memory or patience, that make no sense, or that are odd but right."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.c_interface import INVALID_PTX, CompileError
from softgpu.ptx import limits
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.fuzz.campaign import Worker
from softgpu.tests.compiler.harness import HEADER
from softgpu.tests.compiler.test_refusals import entry
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

DECLARED = ".reg .b32 %r; .reg .b64 %w; .reg .pred %p;\n"
HUGE = 1 << 60


def within(limit: str, least: int, text: str) -> Any:
    return pytest.param(limit, least, text, id=f"{limit} {least}")


# --- enormous: in a process with bounded memory, which has to answer in time

ENORMOUS = {
    "instructions": (lambda: entry(DECLARED + "add.s32 %r, %r, 1;\n" * 140_000), "refused"),
    "a comment": (lambda: entry("/*" + "x" * 10_000_000 + "*/"), "ran"),
    "blanks": (lambda: entry(" " * 10_000_000), "ran"),
    "text": (lambda: entry(" " * limits.TEXT_CHARACTERS), "refused"),
    "unclosed comments": (lambda: entry("/*" * 1_000_000), "refused"),
    "one word": (lambda: entry("a" * 20_000_000), "refused"),
    "brackets": (lambda: entry(DECLARED + "ld.u32 %r, " + "[" * 200_000 + ";"), "refused"),
    "brackets, a few for each instruction": (lambda: entry(DECLARED + f"ld.u32 %r, {'[' * 2000};\n" * 2000), "refused"),
    "blanks in an address": (lambda: entry(DECLARED + "ld.u32 %r, [%w" + " " * 200_000 + "x];"), "refused"),
    "commas": (lambda: entry(DECLARED + "add.s32 " + "," * 1_000_000 + ";"), "refused"),
    "registers": (lambda: entry(".reg .b32 %r<1000000>;"), "refused"),
    "labels": (lambda: entry("".join(f"L{n}:\n" for n in range(100_000))), "ran"),
    "scopes": (lambda: entry("{" * 100_000 + "}" * 100_000), "refused"),
    "kernels": (lambda: HEADER + "".join(f".entry k{n}() {{ ret; }}\n" for n in range(10_000)), "ran"),
    "digits": (lambda: entry(DECLARED + f"mov.u32 %r, {'9' * 1_000_000};"), "refused"),
    "a name": (lambda: f"{HEADER}.entry {'k' * 100_000}() {{ ret; }}", "ran"),
    "a vector": (lambda: entry(f"{DECLARED}mov.b64 %w, {{{'%r,' * 100_000}%r}};"), "refused"),
    "parameters": (lambda: entry("", parameters=", ".join(f".param .u64 p{n}" for n in range(10_000))), "refused"),
    "an initialiser": (lambda: entry("", f".global .b8 x[] = {{{'1,' * 9_999_999}1}};"), "refused"),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("hostile"), run_limit_s=TIMEOUT_S)  # all kernels here end
    yield worker
    worker.end()


@pytest.mark.parametrize(("make", "outcome"), spread(ENORMOUS.values(), 6), ids=ENORMOUS.keys())
def test_enormous_images_are_refused_or_compiled_within_limits(
    worker: Worker, tmp_path: Path, make: Any, outcome: str
) -> None:
    path = tmp_path / "enormous.ptx"
    path.write_text(make())
    assert worker.verdict(str(path)) == outcome


@pytest.mark.parametrize(
    ("limit", "least", "body"),
    [
        within("STATEMENTS", 100, ";" * 101),
        within("STATEMENTS", 100, ".loc 1 2 3\n" * 101),
        within("SCOPES", 5, "{" * 6 + "}" * 6),
        within("BRACKETS", 1, DECLARED + "mov.b64 {%r, %r}, {%r, %r};"),
        within("LOOP_WORK", 5, "a: b: " + DECLARED + "c: @%p bra c; d: @%p bra d; e: @%p bra e; @%p bra a;"),
        within("LIVE_BITS", 1, DECLARED + "a: add.s32 %r, %r, 1; @%p bra a;"),
    ],
)
def test_limits(
    runner: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, least: int, body: str
) -> None:
    monkeypatch.setattr(limits, limit, least)
    with pytest.raises(CompileError) as caught:
        compiled(Gpu(runner, tmp_path), entry(body))
    assert caught.value.result == INVALID_PTX
    assert "makes no sense" not in caught.value.message


# --- too large to be there


@pytest.mark.parametrize("space", ["shared", "local", "global", "const"])
@pytest.mark.parametrize("extent", [f"[{HUGE}]", f"[{HUGE}][{HUGE}]", f"[{HUGE * 16}]"])
def test_variables_of_exabytes(gpu: Any, space: str, extent: str) -> None:
    variable = f".{space} .b8 x{extent};"
    refused(gpu, entry(variable) if space in ("shared", "local") else entry("", variable), f"{space}|global")


def compiled(gpu: Any, text: str | bytes) -> None:
    handle = gpu.compiler.load(text if isinstance(text, bytes) else text.encode())
    gpu.compiler.compile(handle, 0, (32, 1, 1))


def refused(gpu: Any, text: str | bytes, words: str) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        compiled(gpu, text)
    assert "makes no sense" not in caught.value.message


@pytest.mark.full
def test_loops_within_each_other(gpu: Any) -> None:
    heads = "".join(f"L{n}: add.s32 %r, %r, 1;\n" for n in range(5_000))
    ends = "".join(f"@%p bra L{n};\n" for n in reversed(range(5_000)))
    refused(gpu, entry(DECLARED + heads + ends), "too many loops")


# --- no sense

SENSELESS = {
    "recursion": (entry("call f, ();", ".func f() { call f, (); ret; }"), "f"),
    "recursion by way of another": (
        entry("call f, ();", ".func g();\n.func f() { call g, (); ret; }\n.func g() { call f, (); ret; }"),
        "f|g",
    ),
    "a kernel that is called": (entry("call k, ();"), "k"),
    "a jump into nowhere": (entry("bra nowhere;"), "no label nowhere"),
    "a jump into another function": (entry("bra there;", ".func f() { there: ret; }"), "no label there"),
    "a jump into a scope": (entry("bra there; { there: }"), "no label there"),
    "a jump table of nowhere": (entry(DECLARED + "t: .branchtargets a, b; brx.idx %r, t; a:"), "no label b"),
    "a label twice": (entry("a: a: bra a;"), "label a is there twice"),
    "a kernel twice": (entry("ret;") + ".entry k() { ret; }", "function k is there twice"),
    "an unclosed comment": (entry("/* "), "line"),
    "a comment in a comment": (entry("/* /* */ */"), "line"),
    "text that ends": (entry("")[:-4], "ends inside k"),
    "a NUL in a name": (HEADER + ".entry k\0k() { ret; }", "line"),
    "a name that is no text": (HEADER.encode() + b".entry k\xff() { ret; }", "neither PTX text"),
    "UTF-16": (entry("").encode("utf-16"), "neither PTX text|not PTX"),
    "a byte order mark": ("\ufeff" + entry(""), "no .version"),
    "a parameter byte too many": (entry("", parameters=f".param .b8 x[{limits.PARAMETER_BYTES + 1}]"), "parameter"),
    "no version": (".entry k() { ret; }", "no .version"),
}


@pytest.mark.parametrize(("text", "words"), SENSELESS.values(), ids=SENSELESS.keys())
def test_senseless_images_are_refused(gpu: Any, text: str | bytes, words: str) -> None:
    refused(gpu, text, words)


# --- odd, but right

STORES = "ld.param.u64 %w, [out]; mov.u32 %r, 7; st.global.u32 [%w], %r;"


def kernel(body: str, *, end: str = "ret;") -> str:
    return f"{HEADER}.visible .entry k(.param .u64 out) {{ {DECLARED}{body}\n{end} }}\n"


ODD = {
    "no ret": kernel(STORES, end=""),
    "a label at the end": kernel(f"{STORES} bra end;", end="end:"),
    "code that nothing reaches": kernel(f"{STORES} ret; there: add.s32 %r, %r, 1; bra there; trap;"),
    "Windows' line ends": kernel(STORES.replace(" ", "\r\n")).replace("\n", "\r\n"),
    "comments": kernel(STORES.replace(" ", " /* ; } // */ ")) + "// /* the end",
    "blanks": kernel(re.sub(r"([,;])", r" \1\t\n ", STORES)),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_images_run(gpu: Any, text: str) -> None:
    out = np.zeros(1, np.uint32)
    gpu.run(text, "k", 1, 32, out)
    assert out[0] == 7


@pytest.mark.parametrize("size", [4096, limits.PARAMETER_BYTES - 12])
def test_as_many_parameters_as_cuda_allows(gpu: Any, size: int) -> None:
    text = f"""{HEADER}.visible .entry k(.param .u64 out, .param .align 4 .b8 x[{size}]) {{
{DECLARED} ld.param.u64 %w, [out]; ld.param.u32 %r, [x+{size - 4}]; st.global.u32 [%w], %r; ret; }}"""
    out, given = np.zeros(1, np.uint32), np.arange(size // 4, dtype=np.uint32)
    gpu.run(text, "k", 1, 32, out, given.tobytes())
    assert out[0] == given[-1]
