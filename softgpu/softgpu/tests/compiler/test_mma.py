"""mma against NumPy: every form that has code, with the fragments of the PTX manual's figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.c_interface import CompileError
from softgpu.codegen.forms import FORMS, Form
from softgpu.tests.compiler.conftest import Gpu
from softgpu.tests.compiler.harness import HEADER

BY_OPCODE = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def kernel(form: Form, before: str = "", operands: str = "{%d}, {%a}, {%b}, {%c}", opcode: str = "") -> str:
    """k(a, b, c, d): register r of lane l is element [r, l] of these arrays."""
    lines = []
    for name, place in (("a", 1), ("b", 2), ("c", 3)):
        bits = 64 if form.register(place) == "double" else 32
        lines += [f"ld.param.u64 %p, [{name}];", f"mad.wide.u32 %p, %i, {bits // 8}, %p;"]
        lines += [f"ld.global.b{bits} %{name}{r}, [%p+{4 * bits * r}];" for r in range(form.counts[place])]
    bits = 64 if form.register(0) == "double" else 32
    lines += ["ld.param.u64 %p, [d];", f"mad.wide.u32 %p, %i, {bits // 8}, %p;", before]
    for name, count in zip("dabc", form.counts, strict=True):
        operands = operands.replace(f"{{%{name}}}", "{" + ", ".join(f"%{name}{r}" for r in range(count)) + "}")
    lines += [f"mma.{opcode or form.opcode.removeprefix('mma.')} {operands};"]
    lines += [f"st.global.b{bits} [%p+{4 * bits * r}], %d{r};" for r in range(form.counts[0])]
    types = {"i32": "b32", "float": "f32", "double": "f64"}
    declared = "".join(f".reg .{types[form.register(place)]} %{name}<4>;" for place, name in enumerate("dabc"))
    parameters = ", ".join(f".param .u64 {name}" for name in "abcd")
    return f"""{HEADER}.visible .entry k({parameters}) {{
.reg .b32 %i; .reg .b64 %p; .reg .pred %q; {declared}
mov.u32 %i, %tid.x;
{chr(10).join(lines)}
done: ret; }}"""


def fragments(form: Form) -> dict[str, Any]:
    """For each factor and the sum: (row, column) of every element of a lane, as the manual's figures place them."""
    lane = np.arange(32)
    group, inside = lane // 4, lane % 4
    tall, wide = form.rows // 8, form.columns // 4

    def tile(of: int) -> Any:
        return [(inside * wide + i) + of * form.columns for i in range(wide)]

    deep = range(form.depth // form.columns)
    a = [(group + 8 * high, k) for low in deep for high in range(tall) for k in tile(low)]
    b = [(k, group) for low in deep for k in tile(low)]
    c = [(group + 8 * high, 2 * inside + i) for high in range(tall) for i in (0, 1)]
    return {"a": a, "b": b, "c": c}


STORED = {"f16": np.float16, "bf16": np.uint16, "tf32": np.float32, "f32": np.float32, "f64": np.float64}


def stored(kind: str, x: Any) -> Any:
    """Numbers as registers hold them: bfloat16 as its bits."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else x.astype(STORED[kind])


def exact(kind: str, x: Any) -> Any:
    """Return the part of the numbers that tensor cores read."""
    match kind:
        case "bf16":
            return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "tf32":
            return (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def pack(matrix: Any, places: Any) -> Any:
    """[register, lane] of a matrix; two 16-bit numbers share a register."""
    items = np.stack([matrix[row, column] for row, column in places])
    if items.dtype.itemsize != 2:
        return np.ascontiguousarray(items)
    return np.ascontiguousarray(items.reshape(-1, 2, 32).transpose(0, 2, 1)).view(np.uint32)[:, :, 0]


def unpack(registers: Any, form: Form, places: Any) -> Any:
    if form.result == "f16":
        items = registers.view(np.float16).reshape(-1, 32, 2).transpose(0, 2, 1).reshape(-1, 32)
    else:
        items = registers.view(STORED[form.result])
    out = np.zeros((form.rows, 8), STORED[form.result])
    for (row, column), values in zip(places, items, strict=True):
        out[row, column] = values
    return out


def multiply(gpu: Any, form: Form, a: Any, b: Any, c: Any, **other: Any) -> Any:
    places = fragments(form)
    given = [pack(x, places[name]) for name, x in (("a", a), ("b", b), ("c", c))]
    d = np.zeros_like(given[2])
    gpu.run(kernel(form, **other), "k", 1, 32, *given, d)
    return unpack(d, form, places["c"])


def random(form: Form, seed: int, small: int = 0) -> tuple[Any, Any, Any]:
    """Matrices a, b, c; small: of integers up to it."""
    chance = np.random.default_rng(seed)

    def some(kind: str, *shape: int) -> Any:
        x = chance.integers(-small, small + 1, shape).astype(float) if small else chance.standard_normal(shape)
        return stored(kind, x)

    return some(form.kind, form.rows, form.depth), some(form.kind, form.depth, 8), some(form.result, form.rows, 8)


@BY_OPCODE
def test_products_of_integers_are_exact(checked_gpu: Any, form: Form) -> None:
    a, b, c = random(form, 1, small=9)
    expected = exact(form.kind, a) @ exact(form.kind, b) + exact(form.result, c)
    np.testing.assert_array_equal(multiply(checked_gpu, form, a, b, c), expected)


@BY_OPCODE
def test_products(gpu: Any, form: Form) -> None:
    """Within the rounding of one sum for each product; with f16 results only the last one is to 16 bits."""
    unit = {"f16": 2.0**-11, "f32": 2.0**-23, "f64": 2.0**-53}[form.result]
    for seed in range(4):
        a, b, c = random(form, seed)
        expected = exact(form.kind, a) @ exact(form.kind, b) + exact(form.result, c)
        total = abs(exact(form.kind, a)) @ abs(exact(form.kind, b)) + abs(exact(form.result, c))
        times = 1 if form.result == "f16" else form.depth
        error = abs(multiply(gpu, form, a, b, c) - expected)
        assert (error <= times * unit * np.maximum(total, 2.0**-14)).all(), (error / total).max() / unit


@BY_OPCODE
def test_infinities_and_nan_stay_in_their_rows_and_columns(gpu: Any, form: Form) -> None:
    a, b, c = random(form, 2, small=3)
    a[:, 3] = stored(form.kind, np.ones(1))
    a[1, 2], b[3, 4] = stored(form.kind, np.array([np.nan, np.inf]))
    c[5, 6] = -np.inf
    d = multiply(gpu, form, a, b, c).astype(float)
    expected = np.zeros(d.shape)
    expected[1], expected[:, 4], expected[5, 6], expected[1, 4] = np.nan, np.inf, -np.inf, np.nan
    np.testing.assert_array_equal(np.where(np.isfinite(d), 0, d), expected)


def test_tf32_leaves_out_the_low_bits(gpu: Any) -> None:
    form = next(form for form in FORMS.values() if form.kind == "tf32" and form.depth == 8)
    a, b, c = random(form, 3)
    low = np.random.default_rng(4).integers(0, 1 << 13, a.shape).astype(np.uint32)
    noisy = ((a.view(np.uint32) & 0xFFFFE000) | low).view(np.float32)
    np.testing.assert_array_equal(multiply(gpu, form, a, b, c), multiply(gpu, form, noisy, b, c))


HALF = next(form for form in FORMS.values() if form.kind == "f16" and form.depth == 16 and form.result == "f32")


def test_denormals_of_sixteen_bits_count(gpu: Any) -> None:
    a, b, c = (np.zeros(shape, kind) for shape, kind in (((16, 16), "f2"), ((16, 8), "f2"), ((16, 8), "f4")))
    a[:, 0], b[0] = 2.0**-24, 2.0**-20
    np.testing.assert_array_equal(multiply(gpu, HALF, a, b, c), np.full((16, 8), 2.0**-44, np.float32))


def test_the_sum_may_be_the_result_register_or_a_number(gpu: Any) -> None:
    a, b, c = random(HALF, 5, small=5)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    moved = "".join(f"mov.b32 %d{r}, %c{r};" for r in range(4))
    for operands, plus in (("{%d}, {%a}, {%b}, {%d}", c), ("{%d}, {%a}, {%b}, {0f3F800000, 1, 0f00000000, 0}", None)):
        d = multiply(gpu, HALF, a, b, c, before=moved, operands=operands)
        if plus is not None:
            np.testing.assert_array_equal(d, expected + plus)
        else:
            np.testing.assert_array_equal(d[:8, ::2], expected[:8, ::2] + 1)
            np.testing.assert_array_equal(d[8:], expected[8:])


def test_the_whole_warp_has_to_be_there(gpu: Any) -> None:
    a, b, c = random(HALF, 6)
    gone = "setp.gt.u32 %q, %i, 29; @%q bra done;"
    with pytest.raises(RuntimeError, match=r"719: PTX line \d+: the whole warp .* but 30 of 32 lanes run; block \(0,"):
        multiply(gpu, HALF, a, b, c, before=gone)
    guarded = kernel(HALF, "setp.gt.u32 %q, %i, 15;").replace("mma.sync", "@%q mma.sync")
    with pytest.raises(RuntimeError, match="but 16 of 32 lanes run"):
        gpu.run(guarded, "k", 1, 32, *(np.zeros((4, 32), np.uint32) for _ in range(4)))


def test_without_conversions_of_the_processor(runner: Any, tmp_path: Path) -> None:
    gpu = Gpu(runner, tmp_path)
    gpu.compiler._target = replace(gpu.compiler._target, has_half=False)
    for form in FORMS.values():
        if form.kind == "f16":
            a, b, c = random(form, 7, small=9)
            expected = exact("f16", a) @ exact("f16", b) + exact(form.result, c)
            np.testing.assert_array_equal(multiply(gpu, form, a, b, c), expected)


ILLEGAL = {
    "a form of integers": ("", "sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
    "a form of Volta": ("", "sync.aligned.m8n8k4.row.col.f32.f16.f16.f32"),
    "other layouts": ("", HALF.opcode.replace("row.col", "col.row").removeprefix("mma.")),
    "sparse": ("", "sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    "nothing said": ("", "sync"),
    "too few": ("{%d}, {%a0, %a1}, {%b}, {%c}", ""),
    "too many": ("{%d}, {%a}, {%b0, %b1, %b0, %b1}, {%c}", ""),
    "an address": ("{%d}, {%a}, [%p], {%c}", ""),
    "a number to write to": ("{1, 2, 3, 4}, {%a}, {%b}, {%c}", ""),
    "wide registers": ("{%d}, {%a}, {%p, %p}, {%c}", ""),
    "a sink to read": ("{%d}, {%a}, {_, %b0}, {%c}", ""),
    "three operands": ("{%d}, {%a}, {%b}", ""),
}


@pytest.mark.parametrize(("operands", "opcode"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_illegal_forms(gpu: Any, operands: str, opcode: str) -> None:
    text = kernel(HALF, operands=operands or "{%d}, {%a}, {%b}, {%c}", opcode=opcode)
    line = text[: text.index(" {%d0" if not operands.startswith("{1") else " {1,")].count("\n") + 1
    with pytest.raises(CompileError, match=f"line {line}: .*mma") as caught:
        gpu.compiler.load(text.encode())
    assert "a mistake" not in caught.value.message
