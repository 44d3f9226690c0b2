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


PRINT = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.visible .entry k(.param .u64 p, .param .u64 a, .param .u64 s)
{
    .reg .b64 %f, %a, %s;
    .reg .b32 %r;
    ld.param.u64 %f, [p];
    ld.param.u64 %a, [a];
    ld.param.u64 %s, [s];
    st.global.u32 [%s], 1;
    .param .b64 p0; .param .b64 p1; .param .b32 ret;
    st.param.b64 [p0], %f;
    st.param.b64 [p1], %a;
    call.uni (ret), vprintf, (p0, p1);
    ld.param.b32 %r, [ret];
    ret;
}
"""


def write(gpu: Any, format_: bytes, *arguments: int, stop: Any = None) -> str:
    """Print a format with arguments of four bytes; stop: set before it is printed. Return the output."""
    text, given = np.frombuffer(format_ + b"\0", np.uint8), np.array([*arguments, *[0] * 32], np.int32)
    flag = np.zeros(1, np.uint32) if stop is None else stop
    gpu.run(PRINT, "k", 1, 1, text, given, flag, stop=stop)
    return str(gpu.printed())


@pytest.mark.parametrize(
    ("format_", "expected"),
    [(b"100 %", "100 %"), (b"%y is none", "%y is none"), (b"%-5", "%-5"), (b"x" * 5000, "x" * 4096), (b"", "")],
)
def test_odd_formats(gpu: Any, format_: bytes, expected: str) -> None:
    assert write(gpu, format_) == expected


MANY = 2_147_483_000


@pytest.mark.parametrize(
    ("format_", "arguments", "expected"),
    [
        (b"%*d", (MANY, 7), " " * 4095 + "7"),
        (b"%*d|", (-MANY, 7), "7" + " " * 4095),
        (b"%.*d", (MANY, 7), "0" * 4095 + "7"),
        (b"%.*d", (-1, 7), "7"),
        (b"%2147483000d", (7,), " " * 4095 + "7"),
        (b"%.99999999999999999999f", (0, 0), "0." + "0" * 4094),
        (b"%.*f", (MANY, 0, 0, 0), "0." + "0" * 4094),
        (b"%-*.*f" * 8, (-(2**31), MANY, 0, 0) * 8, "0." + "0" * 4094),
        (b"%**d", (4096, 4096, 7), "%**d"),
        (b"%" + b"0" * 5000 + b"3d", (7,), "007"),
        (b"%600d", (7,), " " * 599 + "7"),
    ],
)
def test_width_and_precision_are_cut_as_the_output_is(
    gpu: Any, format_: bytes, arguments: tuple[int, ...], expected: str
) -> None:
    assert write(gpu, format_, *arguments) == expected


def test_a_long_format_ends_when_the_launch_is_to_end(gpu: Any) -> None:
    with pytest.raises(RuntimeError, match="702: cancelled"):
        write(gpu, b"%.4096f" * 100_000, stop=np.zeros(1, np.uint32))
    assert gpu.printed() == ""
