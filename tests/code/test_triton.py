"""Triton's kernels: signatures, their launches, refusals; right results on the software GPU."""

# mypy: ignore-errors
# ruff: noqa: E402, N803 constants have capitals in this language

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")

import kaas
from kaas.errors import CompileFailed, InvalidGraph, InvalidTarget
from kaas.ktask.signature import NumberParameter, PointerParameter, ScratchParameter

N = 1000


@triton.jit
def blend(x, y, out, n, share, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    mixed = tl.load(x + i, mask=inside) * share + tl.load(y + i, mask=inside) * (1 - share)
    tl.store(out + i, mixed, mask=inside)


@triton.jit
def row_sums(x, out, columns: tl.constexpr, ROWS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * columns + tl.arange(0, columns)[None, :]
    tl.store(out + tl.arange(0, ROWS), tl.sum(tl.load(x + at), axis=1))


@triton.jit
def wrong(x, BLOCK: tl.constexpr):
    tl.store(x + BLOCK, nowhere)  # noqa: F821


BLEND = "*fp32 *fp16 *fp32 i32 fp32"


def test_the_library_has_the_name_and_the_parameters_of_the_kernel() -> None:
    library = kaas.Library.from_triton(blend, BLEND, {"BLOCK": 128}, num_warps=2)
    (entry,) = library.entries
    assert [image.kind for image in library.images] == ["cubin", "ptx"]
    assert (entry.name, entry.block) == ("blend", (64, 1, 1))
    assert entry.parameters == (
        PointerParameter("x", "float32"),
        PointerParameter("y", "float16"),
        PointerParameter("out", "float32"),
        NumberParameter("n", "i32"),
        NumberParameter("share", "f32"),
    )
    assert set(entry.scratch) <= {ScratchParameter(0)}
    assert str(__file__).encode() not in b"".join(image.data for image in library.images)


@pytest.mark.parametrize(
    "signature",
    [
        "*fp32, *fp16, *fp32, i32, fp32",
        BLEND.split(),
        dict(zip(("x", "y", "out", "n", "share"), BLEND.split(), strict=True)),
        {"BLOCK": "constexpr", **dict(zip(("share", "n", "out", "y", "x"), reversed(BLEND.split()), strict=True))},
    ],
)
def test_one_signature_in_many_ways(signature: Any) -> None:
    assert kaas.Library.from_triton(blend, signature, {"BLOCK": 128}) == kaas.Library.from_triton(
        blend, BLEND, {"BLOCK": 128}
    )


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize(("block", "warps"), [(16, 1), (256, 4), (1024, 8)])
def test_blocks_and_warps_of_any_size(block: int, warps: int) -> None:
    library = kaas.Library.from_triton(blend, BLEND, {"BLOCK": block}, arch="ptx", num_warps=warps)
    x, out = (kaas.Buffer(name, N, "float32") for name in ("x", "out"))
    y = kaas.Buffer("y", N, "float16")
    kernel = library.kernel(
        grid=-(-N // block), args=[kaas.In(x), kaas.In(y), kaas.Out(out), N, kaas.Scalar("share", "f32")]
    )
    rng = np.random.default_rng(0)
    given = {"x": rng.random(N, np.float32), "y": rng.random(N).astype(np.float16)}
    result = kaas.run_local(kaas.KTask([kernel], outputs=[out]), given, scalars={"share": 0.25})["out"]
    np.testing.assert_allclose(result, 0.25 * given["x"] + 0.75 * given["y"].astype(np.float32), rtol=1e-6)


@pytest.mark.usefixtures("softgpu")
def test_shared_memory_and_fixed_arguments() -> None:
    library = kaas.Library.from_triton(row_sums, "*fp32:16 *fp32:16", {"columns": 256, "ROWS": 2}, arch="compute_80")
    assert library.entries[0].shared_bytes
    x, out = kaas.Buffer("x", (2, 256), "float32"), kaas.Buffer("out", 2, "float32")
    task = kaas.KTask([library.kernel(grid=1, args=[kaas.In(x), kaas.Out(out)])], outputs=[out])
    values = np.arange(512, dtype=np.float32).reshape(2, 256)
    np.testing.assert_array_equal(kaas.run_local(task, {"x": values})["out"], values.sum(axis=1))


@triton.jit
def every_kind(a, b, c, d, e, f, g, out):
    tl.store(out, a.to(tl.float64))
    tl.store(out + 1, b.to(tl.float64))
    tl.store(out + 2, c.to(tl.float64))
    tl.store(out + 3, d.to(tl.float64))
    tl.store(out + 4, e.to(tl.float64))
    tl.store(out + 5, f.to(tl.float64))
    tl.store(out + 6, g)


@pytest.mark.usefixtures("softgpu")
def test_numbers_of_every_kind() -> None:
    library = kaas.Library.from_triton(every_kind, "i16 u8 u64 i1 fp16 bf16 fp64 *fp64", arch="ptx", num_warps=1)
    out = kaas.Buffer("out", 7, "float64")
    numbers = [-300, 200, 1 << 40, True, 1.5, -0.25, 1e300]
    result = kaas.run_local(kaas.KTask([library.kernel(grid=1, args=[*numbers, kaas.Out(out)])], outputs=[out]))["out"]
    assert result.tolist() == [-300, 200, 1 << 40, 1, 1.5, -0.25, 1e300]


def test_any_parameter_can_be_fixed() -> None:
    library = kaas.Library.from_triton(blend, "*fp32 *fp16 *fp32 fp32", {"BLOCK": 128, "n": N}, arch="ptx")
    assert [parameter.name for parameter in library.entries[0].parameters] == ["x", "y", "out", "share"]


def test_promises_are_kept() -> None:
    library = kaas.Library.from_triton(blend, "*fp32:16 *fp16 *fp32:16 i32:16 fp32", {"BLOCK": 128})
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float16")
    library.kernel(grid=8, args=[kaas.In(x, 16), kaas.In(y, 2), kaas.Out(x), 992, 0.5])
    for n, offset in ((1000, 16), (992, 4)):
        with pytest.raises(InvalidGraph, match="16"):
            library.kernel(grid=8, args=[kaas.In(x, offset), kaas.In(y), kaas.Out(x), n, 0.5])


@pytest.mark.parametrize(
    ("signature", "constants", "words"),
    [
        ("*fp32 *fp16", {"BLOCK": 128}, "5 parameters"),
        (BLEND, {}, "6 parameters"),
        (BLEND, {"BLOCK": 128, "SIZE": 2}, "no parameter SIZE"),
        ({"x": "*fp32"}, {"BLOCK": 128}, "a type for y, out, n, share"),
        ({"z": "*fp32"}, {"BLOCK": 128}, "no parameter z"),
    ],
)
def test_signatures_that_do_not_fit(signature: Any, constants: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        kaas.Library.from_triton(blend, signature, constants)


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("*fp33 *fp16 *fp32 i32 fp32", "fp33"),
        ("*fp32:3 *fp16 *fp32 i32 fp32", ":3"),
        ("tensordesc<fp32[8]> *fp16 *fp32 i32 fp32", "desc"),
    ],
)
def test_types_that_no_argument_has(signature: str, words: str) -> None:
    with pytest.raises(CompileFailed, match=words):
        kaas.Library.from_triton(blend, signature, {"BLOCK": 128})


def test_kernels_that_do_not_compile() -> None:
    with pytest.raises(CompileFailed, match="nowhere") as raised:
        kaas.Library.from_triton(wrong, "*fp32", {"BLOCK": 8})
    assert raised.value.source == "wrong"
    assert raised.value.compiler.startswith("Triton 3")
    assert raised.value.line == 2
    with pytest.raises(CompileFailed, match="power of 2"):
        kaas.Library.from_triton(blend, BLEND, {"BLOCK": 100})


def test_a_value_that_is_no_kernel_is_refused() -> None:
    tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])(blend)
    for given in (tuned, test_promises_are_kept):
        with pytest.raises(CompileFailed, match="@triton"):
            kaas.Library.from_triton(given, BLEND, {"BLOCK": 128})


@pytest.mark.parametrize("arch", ["sm_80+sm_90", "sm_90+compute_80"])
def test_one_device_at_a_time(arch: str) -> None:
    with pytest.raises(InvalidTarget, match="one device at a time"):
        kaas.Library.from_triton(blend, BLEND, {"BLOCK": 128}, arch=arch)


@pytest.mark.parametrize("arch", ["sm_1", "sm_85+ptx", "sm_999"])
def test_devices_that_triton_does_not_know(arch: str) -> None:
    with pytest.raises(InvalidTarget, match=f"nothing for {arch.partition('+')[0]}"):
        kaas.Library.from_triton(blend, BLEND, {"BLOCK": 128}, arch=arch)


def test_options_that_triton_does_not_know() -> None:
    kaas.Library.from_triton(blend, BLEND, {"BLOCK": 128}, options={"maxnreg": 64})
    with pytest.raises(CompileFailed, match="no option num_wraps"):
        kaas.Library.from_triton(blend, BLEND, {"BLOCK": 128}, options={"num_wraps": 2})


@triton.jit
def fill(out, value, BLOCK: tl.constexpr = 32):
    tl.store(out + tl.arange(0, BLOCK), value)


def test_constants_have_the_defaults_of_the_function() -> None:
    library = kaas.Library.from_triton(fill, "*fp32 fp32")
    assert library == kaas.Library.from_triton(fill, "*fp32 fp32", {"BLOCK": 32})
    assert library != kaas.Library.from_triton(fill, "*fp32 fp32", {"BLOCK": 64})
    assert [parameter.name for parameter in library.entries[0].parameters] == ["out", "value"]


def test_the_program_of_the_guide() -> None:
    guide = Path(kaas.__file__).parent.parent / "docs" / "kernels.md"
    (program,) = re.findall(r"```python fragment\n(.*?)```", guide.read_text(), re.DOTALL)
    names = {}
    exec(program, names)
    assert names["kernel"].grid == (50, 1, 1)
