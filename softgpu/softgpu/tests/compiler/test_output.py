"""printf and assert of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

OUTPUT = (Path(__file__).parent / "kernels" / "output.ptx").read_text()


def test_integers(gpu: Any) -> None:
    a, b, c, d = 42, 3_000_000_000, -(2**40), 2**63 + 5
    gpu.run(OUTPUT, "numbers", 1, 1, np.int32(a), np.uint32(b), np.int64(c), np.uint64(d))
    assert gpu.printed().splitlines() == [
        f"{a}|{-a}|{b}|{b:x}|{b:X}|{b:o}|k|%",
        f"{a:5d}|{a:<5d}|{a:05d}|{a:+d}|{a: d}|{b:#x}|{a:03d}",
        f"{c}|{c}|{d}|{d:x}|{np.int32(70000).astype(np.int16)}|{300 & 255}|8",
        "    42|42    |3.14",
    ]


@pytest.mark.parametrize("value", [0.1, -1e30, np.inf, np.nan])
def test_reals(gpu: Any, value: float) -> None:
    x = float(np.float32(value))
    gpu.run(OUTPUT, "reals", 1, 1, np.float32(value), np.float64(value))
    assert gpu.printed() == f"{x:f}|{value:e}|{value:g}|{x:10.3f}|{value:<10.2e}|{x:G}\n"


def test_texts(gpu: Any) -> None:
    text = np.frombuffer(b"given\0", np.uint8)
    gpu.run(OUTPUT, "texts", 1, 1, text)
    assert gpu.printed() == f"given|     right|left  |cu|{text.ctypes.data:#x}\nno arguments\n"


def test_only_the_running_lanes_print_and_each_gets_the_count(gpu: Any) -> None:
    results = np.zeros(90, np.int32)
    gpu.run(OUTPUT, "lanes", 2, 45, results, np.int32(70))
    chosen = [i for i in range(70) if i % 3 == 1]
    assert sorted(gpu.printed().splitlines()) == sorted(f"thread {i}: {i * i}" for i in chosen)
    assert np.flatnonzero(results).tolist() == chosen
    assert set(results[chosen]) == {2}


def test_lines_of_many_threads_stay_whole(gpu: Any) -> None:
    results = np.zeros(3000, np.int32)
    gpu.run(OUTPUT, "lanes", 3000, 1, results, np.int32(3000))
    assert sorted(gpu.printed().splitlines()) == sorted(f"thread {i}: {i * i}" for i in range(1, 3000, 3))


def test_in_functions_and_loops(gpu: Any) -> None:
    gpu.run(OUTPUT, "twice", 1, 1, np.int32(4))
    assert gpu.printed() == "".join(f"told by {i}\n" for i in (0, 1, -1, 2, 3, -3))


def test_printing_a_text_outside_memory_is_an_illegal_access(gpu: Any) -> None:
    with pytest.raises(RuntimeError, match=r"700: illegal access in block \(0, 0, 0\), warp 0: 0x10"):
        gpu.run(OUTPUT, "texts", 1, 1, np.uint64(16))
    assert gpu.printed() == ""


def test_an_assertion(gpu: Any) -> None:
    x, out = np.ones(100, np.int32), np.zeros(100, np.int32)
    gpu.run(OUTPUT, "checked", 2, 50, x, out)
    assert (out == 1).all()
    x[[77, 78]] = 0
    place = r"output.cu:37: .*checked.*: block: \[1,0,0\], thread: \[27,0,0\]"
    said = place + r" Assertion `x\[i\] > 0 && \"x is positive\"` failed."
    with pytest.raises(RuntimeError, match=rf"710: .*{said}") as caught:
        gpu.run(OUTPUT, "checked", 2, 50, x, out)
    assert str(caught.value) == f"710: {gpu.printed().rstrip()}"


@pytest.mark.parametrize(
    ("format_", "expected"),
    [(b"100 %", "100 %"), (b"%y is none", "%y is none"), (b"%-5", "%-5"), (b"x" * 5000, "x" * 4096), (b"", "")],
)
def test_odd_formats(gpu: Any, format_: bytes, expected: str) -> None:
    ptx = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.visible .entry k(.param .u64 p)
{
    .reg .b64 %f;
    .reg .b32 %r;
    ld.param.u64 %f, [p];
    .param .b64 p0; .param .b64 p1; .param .b32 ret;
    st.param.b64 [p0], %f;
    st.param.b64 [p1], 0;
    call.uni (ret), vprintf, (p0, p1);
    ld.param.b32 %r, [ret];
    ret;
}
"""
    gpu.run(ptx, "k", 1, 1, np.frombuffer(format_ + b"\0", np.uint8))
    assert gpu.printed() == expected
