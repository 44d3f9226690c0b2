"""Device functions that nvcc does not expand itself, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

FUNCTIONS = (Path(__file__).parent / "kernels" / "functions.ptx").read_text()


@pytest.fixture
def numbers() -> Any:
    return np.random.default_rng(3).integers(-500, 500, (2, 64)).astype(np.int32)


def third(a: int, b: int) -> int:
    return 10 * a + b


def second(a: int, b: int) -> int:
    return third(b, a) + 1000 * third(a, b)


def first(a: int, b: int) -> int:
    return second(a + 1, b) - second(b, a)


@pytest.mark.slow
def test_functions_that_call_functions(gpu: Any, numbers: Any) -> None:
    a, b = numbers
    out = np.zeros(64, np.int32)
    gpu.run(FUNCTIONS, "deep", 2, 32, a, b, out)
    expected = [first(x, y) + second(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(out, np.array(expected, np.int64).astype(np.int32))


def test_parameters_narrower_than_their_slots(gpu: Any, numbers: Any) -> None:
    a = numbers[0]
    out = np.zeros(64, np.int32)
    gpu.run(FUNCTIONS, "small_parameters", 2, 32, a, out)
    c, u, s = a.astype(np.int8).astype(int), a.astype(np.uint8).astype(int), a.astype(np.int16).astype(int)
    np.testing.assert_array_equal(out, np.where(a & 1, c + 1000 * u, s - u))


def test_structs_to_and_from_functions(gpu: Any, numbers: Any) -> None:
    a, b = numbers
    out = np.zeros(64, np.int32)
    gpu.run(FUNCTIONS, "structs", 2, 32, a, b, out)
    np.testing.assert_array_equal(out, 100 * b - (a + 1))


def test_a_struct_parameter_that_is_indexed(gpu: Any, numbers: Any) -> None:
    a = numbers[0]
    out = np.zeros(64, np.int32)
    gpu.run(FUNCTIONS, "addressed", 2, 32, a, out)
    np.testing.assert_array_equal(out, a + (a & 7) ** 2)


def test_bytes_seen_in_several_widths(gpu: Any) -> None:
    """The callee reads the halves of what the caller writes whole."""
    text = f"""{HEADER}
.func (.param .b32 result) f(.param .b64 whole) {{
.reg .b32 %a, %b;
ld.param.b32 %a, [whole];
ld.param.b32 %b, [whole+4];
sub.s32 %a, %b, %a;
st.param.b32 [result], %a;
ret;
}}
.visible .entry k(.param .u64 out) {{
.reg .b64 %p, %w; .reg .b32 %r; .reg.b32 x,y;
mov.b64 %w, {{7, 1000}};
{{
.param .b64 p0;
.param .b32 r0;
st.param.b64 [p0], %w;
call.uni (r0), f, (p0);
ld.param.b32 %r, [r0];
}}
ld.param.u64 %p, [out];
st.global.u32 [%p], %r;
ret;
}}"""
    out = np.zeros(1, np.uint32)
    gpu.run(text, "k", 1, 32, out)
    assert out[0] == 993


@pytest.mark.slow
def test_functions_one_after_the_other_share_their_local_memory(gpu: Any) -> None:
    """Each keeps its own while it calls others; together they would need far more than a thread may have."""
    functions = ".func (.reg .u32 r) f0(.reg .u32 a) { add.u32 r, a, 1; ret; }\n"
    for n in range(1, 8):
        functions += f""".func (.reg .u32 r) f{n}(.reg .u32 a) {{
.local .align 16 .b8 x[60000]; .reg .u32 %b, %c;
st.local.u32 [x], a; st.local.u32 [x+59996], {n};
add.u32 %b, a, {n};
call (%b), f{n - 1}, (%b);
call (%c), f{n - 1}, (a);
ld.local.u32 r, [x]; add.u32 r, r, %b; add.u32 r, r, %c;
ld.local.u32 %b, [x+59996]; add.u32 r, r, %b;
ret;
}}
"""
    text = f"""{HEADER}{functions}.visible .entry k(.param .u64 out) {{
.reg .b64 %p, %w; .reg .b32 %t, %r;
mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 4;
call (%r), f7, (%t);
ld.param.u64 %p, [out]; add.u64 %p, %p, %w;
st.global.u32 [%p], %r;
ret;
}}"""

    def value(n: int, a: int) -> int:
        return a + value(n - 1, a + n) + value(n - 1, a) + n if n else a + 1

    out = np.zeros(64, np.uint32)
    gpu.run(text, "k", 2, 32, out)
    assert out.tolist() == [value(7, lane) for lane in range(32)] + [0] * 32
