"""An argument of another type than its parameter is refused, above all a number where the code takes an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import ArgumentMismatch
from kaas.executor.local import check
from tests.api.conftest import STEPS, N

pytestmark = pytest.mark.usefixtures("softgpu")
SIMPLE = kaas.Library.from_file(Path(__file__).parent.parent / "executor" / "kernels" / "simple.ptx")
X, Y = (kaas.Buffer(name, N, "float32") for name in "xy")


def scaled(source: Any = None, factor: Any = None, count: Any = None, library: kaas.Library = STEPS) -> kaas.KTask:
    args = [source or kaas.In(X), kaas.Out(Y), factor or kaas.f32(2), count or kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library, "scale", 4, 256, args)], [Y])


def with_body(text: str) -> kaas.Library:
    """Return a kernel with this body, of a plain .u64 p, a plain .u64 n and an array of bytes s."""
    return kaas.Library.from_ptx(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry scale(.param .u64 p, .param .u64 n, "
        ".param .align 8 .b8 s[16], .param .u64 out)\n{ .reg .b64 %rd<9>; .reg .b32 %r<3>;\n"
        f"ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [n]; ld.param.u64 %rd3, [s+8]; ld.param.u64 %rd8, [out];\n{text}\n"
        "st.global.u64 [%rd8], %rd2; ret; }\n"
    )


def read(library: kaas.Library, p: Any, s: Any = None, n: Any = None) -> kaas.KTask:
    s = s or kaas.Struct(bytes(16), align=8)
    args = [p, n or kaas.u64(3), s, kaas.Out(Y)]
    return kaas.KTask([kaas.Kernel(library, "scale", 1, 1, args)], [Y])


@pytest.mark.parametrize(
    "address", [kaas.u64(1 << 40), kaas.i64(1 << 40), kaas.f64(1.5), kaas.Scalar("address", "u64")], ids=repr
)
def test_a_number_is_refused_where_a_pointer_is_taken(address: Any) -> None:
    with pytest.raises(ArgumentMismatch, match=r"argument 0, .* is a number where the code takes a pointer") as caught:
        check(scaled(source=address))
    assert caught.value.argument == 0
    check(scaled())


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u64 %rd2, [%rd1];",
        "cvta.to.global.u64 %rd4, %rd1; ld.global.u64 %rd2, [%rd4+8];",
        "mov.u64 %rd4, %rd1; ld.global.u64 %rd2, [%rd4];",
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 8; add.s64 %rd5, %rd1, %rd4; ld.global.u64 %rd2, [%rd5];",
    ],
)
def test_the_code_shows_which_plain_u64_is_a_pointer(body: str) -> None:
    library = with_body(body)
    with pytest.raises(ArgumentMismatch, match="argument 0"):
        check(read(library, kaas.u64(1 << 40)))
    check(read(library, kaas.In(X), n=kaas.Scalar("n", "u64")))
    check(read(library, kaas.Null))


def test_a_number_that_is_added_to_a_pointer_is_a_number() -> None:
    body = "cvta.to.global.u64 %rd4, %rd1; add.s64 %rd5, %rd4, %rd2; ld.global.u64 %rd6, [%rd5];"
    check(read(with_body(body), kaas.In(X), n=kaas.Scalar("n", "u64")))
    with pytest.raises(ArgumentMismatch, match="argument 0"):
        check(read(with_body(body), kaas.u64(1)))


def test_only_declared_fields_of_a_struct_are_pointers() -> None:
    library = with_body("cvta.to.global.u64 %rd4, %rd3; ld.global.u64 %rd2, [%rd4];")
    smuggled = [
        kaas.Struct(bytes(8) + (1 << 40).to_bytes(8, "little"), align=8),
        kaas.Struct(bytes(16), scalars={8: kaas.Scalar("address", "u64")}, align=8),
        kaas.Struct(bytes(16), scalars={12: kaas.Scalar("half", "u32")}, align=8),
    ]
    for struct in smuggled:
        with pytest.raises(ArgumentMismatch, match="a number at byte 8, where the code takes a pointer"):
            check(read(library, kaas.u64(1), struct))
    check(read(library, kaas.u64(1), kaas.Struct((1 << 40).to_bytes(8, "little") + bytes(8), {8: kaas.In(X)}, align=8)))
    check(read(library, kaas.u64(1)))


@pytest.mark.parametrize("wrong", [kaas.f32(N), kaas.Scalar("n", "f32")], ids=repr)
def test_a_float_is_refused_for_an_integer(wrong: Any) -> None:
    with pytest.raises(ArgumentMismatch, match=r"argument 3, .* is no integer, and the parameter is \.u32"):
        check(scaled(count=wrong))
    for right in (kaas.u32(N), kaas.i32(N), kaas.Scalar("n", "u32")):
        check(scaled(count=right))


@pytest.mark.parametrize("wrong", [kaas.i32(2), kaas.Scalar("factor", "u32")], ids=repr)
def test_an_integer_is_refused_for_a_float(wrong: Any) -> None:
    with pytest.raises(ArgumentMismatch, match=r"argument 2, .* is no f32"):
        check(scaled(factor=wrong))


def test_a_kernel_with_matching_arguments_still_runs() -> None:
    x = np.arange(N, dtype=np.float32)
    np.testing.assert_array_equal(kaas.run_local(scaled(), {"x": x})["y"], 2 * x)
