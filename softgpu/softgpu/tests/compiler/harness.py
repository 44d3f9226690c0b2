"""Kernels of one instruction, written by hand: each thread loads its operands, computes, stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
DTYPES: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "f16": np.float16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64, "bf16": np.uint16,
    "f16x2": np.uint32, "bf16x2": np.uint32, "pred": np.uint32,
}  # fmt: skip
Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """line: the instruction, with {d} for the result and {a}, {b}, {c} for the operands of these types."""

    line: str
    result: str
    operands: tuple[str, ...]


def storage(name: str) -> str:
    """The register type that holds values of this type."""
    if name == "pred":
        return "pred"
    if name in ("f32", "f64"):
        return name
    bits = int(name.removesuffix("x2").lstrip("bfsu")) * (2 if name.endswith("x2") else 1)
    return f"b{max(bits, 16)}"


def kernel(case: Case, uniform: bool) -> str:
    """`uniform`: all threads of a block do the same, so that the compiler can use scalars."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(case.operands) + 1))
    index = "mov.u32 %i, %ctaid.x;" if uniform else "mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %i, %ctaid.x;\n"
    index += "" if uniform else "mad.lo.u32 %i, %i, %n, %t;"
    lines = [f".visible .entry k({parameters})", "{", ".reg .b32 %i, %t, %n;", ".reg .b64 %p, %w;", ".reg .pred %q;"]
    lines += [".reg .b32 %x;", f".reg .{storage(case.result)} %d;"]
    lines += [f".reg .{storage(name)} %{letter};" for letter, name in zip("abcef", case.operands, strict=False)]
    lines += [index, "cvt.u64.u32 %w, %i;"]
    for number, (letter, name) in enumerate(zip("abcef", case.operands, strict=False), 1):
        size = np.dtype(DTYPES[name]).itemsize
        lines += [f"ld.param.u64 %p, [p{number}];", f"mad.lo.u64 %p, %w, {size}, %p;"]
        if name == "pred":
            lines += ["ld.global.u32 %x, [%p];", f"setp.ne.u32 %{letter}, %x, 0;"]
        else:
            lines += [f"ld.global.{_memory(name)} %{letter}, [%p];"]
    registers = {letter: f"%{letter}" for letter in "abcdef"}
    lines += [case.line.format(**registers)]
    size = np.dtype(DTYPES[case.result]).itemsize
    lines += ["ld.param.u64 %p, [p0];", f"mad.lo.u64 %p, %w, {size}, %p;"]
    if case.result == "pred":
        lines += ["selp.u32 %x, 1, 0, %d;", "st.global.u32 [%p], %x;"]
    else:
        lines += [f"st.global.{_memory(case.result)} [%p], %d;"]
    return HEADER + "\n".join([*lines, "ret;", "}"])


def _memory(name: str) -> str:
    if name in ("f32", "f64", "u8", "s8"):
        return name
    return storage(name)


def run(gpu: Any, case: Case, operands: list[Array], uniform: bool) -> Array:
    count = len(operands[0])
    out = np.zeros(count, DTYPES[case.result])
    given = [np.ascontiguousarray(array, DTYPES[name]) for array, name in zip(operands, case.operands, strict=False)]
    text = kernel(case, uniform)
    if uniform:
        gpu.run(text, "k", count, 32, out, *given)
    else:
        assert count % 32 == 0
        gpu.run(text, "k", count // 32, 32, out, *given)
    return out


def edges(name: str) -> Array:
    """Values at which arithmetic of this type goes wrong."""
    if name == "pred":
        return np.array([0, 1], np.uint32)
    dtype: Any = np.dtype(DTYPES[name])
    if dtype.kind == "f":
        info: Any = np.finfo(dtype)
        tiny = info.smallest_subnormal
        ends = [info.max, info.min, info.tiny, tiny, -tiny]
        return np.array(
            [*ends, 0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3, 127.5, -128.5, 65504, 1e-3, np.inf, -np.inf, np.nan],
            dtype,
        )  # fmt: skip
    limits = np.iinfo(dtype)
    return np.array(
        [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, limits.max, limits.max - 1, limits.min, limits.max // 2 + 1], dtype
    )


def values(names: tuple[str, ...], count: int = 512, seed: int = 1) -> list[Array]:
    """Random operands with every pair of edge values of the first two among them."""
    random = np.random.default_rng(seed)
    out = []
    for position, name in enumerate(names):
        dtype = np.dtype(DTYPES[name])
        if name == "pred":
            column = random.integers(0, 2, count).astype(np.uint32)
        elif dtype.kind == "f":
            exponent = random.integers(-12, 12, count)
            column = (random.standard_normal(count) * np.exp2(exponent)).astype(dtype)
        else:
            column = random.integers(0, 256, (count, dtype.itemsize), np.uint8).view(dtype).reshape(count)
            small = random.random(count) < 0.3
            column = np.where(small, column % np.array(41, dtype), column)
        special = edges(name)
        pairs = min(count, len(special) ** 2 if position < 2 else len(special))
        step = 1 if position == 0 else len(special) if position == 1 else 1
        column[:pairs] = special[np.arange(pairs) // step % len(special)]
        out.append(column)
    return out


def same(actual: Array, expected: Array, ulp: int = 0) -> None:
    """Equal bits; for floating-point NaN is NaN, and `ulp` units of the last place may lie between."""
    expected = np.asarray(expected, actual.dtype)
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    if ulp:
        np.testing.assert_array_max_ulp(actual[~nan], expected[~nan], ulp)
    else:
        bits = f"u{actual.dtype.itemsize}"
        wrong = np.nonzero((actual.view(bits) != expected.view(bits)) & ~nan)[0]
        assert not len(wrong), (len(wrong), actual[wrong[:5]], expected[wrong[:5]], wrong[:5])


def run_all(
    gpu: Any, lines: list[tuple[str, str]], names: tuple[str, ...], operands: list[Array], uniform: bool
) -> Any:
    """Return the results of several instructions, as (line, type of the result), on the same operands: an array for
    each. One kernel runs them all."""
    declared = [f".reg .{storage(result)} %o{place};" for place, (_, result) in enumerate(lines)]
    body, outs = [], []
    for place, (line, result) in enumerate(lines):
        registers = {letter: f"%{letter}" for letter in "abcef"} | {"d": f"%o{place}"}
        size = np.dtype(DTYPES[result]).itemsize
        body += [line.format(**registers), f"ld.param.u64 %p, [r{place}];", f"mad.lo.u64 %p, %w, {size}, %p;"]
        if result == "pred":
            body += [f"selp.u32 %x, 1, 0, %o{place};", "st.global.u32 [%p], %x;"]
        else:
            body += [f"st.global.{_memory(result)} [%p], %o{place};"]
        outs.append(np.zeros(len(operands[0]), DTYPES[result]))
    text = kernel(Case("\n".join([*declared, *body, "mov.u32 {d}, 0;"]), "u32", names), uniform)
    parameters = "".join(f", .param .u64 r{place}" for place in range(len(lines)))
    text = text.replace(f"p{len(names)})", f"p{len(names)}{parameters})", 1)
    given = [np.ascontiguousarray(array, DTYPES[name]) for array, name in zip(operands, names, strict=True)]
    unused, count = np.zeros(len(operands[0]), np.uint32), len(operands[0])
    gpu.run(text, "k", count if uniform else count // 32, 32, unused, *given, *outs)
    return outs
