"""Whole kernels, as nvcc compiles them, against NumPy and plain Python."""

from __future__ import annotations

import ctypes
import gc
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

HERE = Path(__file__).parent / "kernels"
DIVERGENCE, MEMORY, WARP = ((HERE / f"{name}.ptx").read_text() for name in ("divergence", "memory", "warp"))
BLOCKS = [32, 48, 256, (16, 16), (8, 4), (32, 2, 2)]


def i32(value: int) -> Any:
    return np.int32(value)


def threads(block: int | tuple[int, ...]) -> int:
    return int(np.prod(block))


@pytest.fixture(params=["plain", "memcheck", "fenced"])
def gpu(request: pytest.FixtureRequest, gpu: Any, checked_gpu: Any, fenced_gpu: Any) -> Any:
    """Each kernel runs three times: good kernels pass memcheck, and do the same under it and in a window."""
    return {"plain": gpu, "memcheck": checked_gpu, "fenced": fenced_gpu}[request.param]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


# --- lanes that part


def c_remainder(a: int, b: int) -> int:
    return abs(a) % b * (1 if a >= 0 else -1)


def steps_to_one(value: int) -> int:
    steps = 0
    while value != 1:
        value = 3 * value + 1 if value & 1 else value // 2
        steps += 1
    return steps


@pytest.mark.parametrize("block", [32, 40, 256])
def test_collatz(gpu: Any, block: int) -> None:
    out = np.zeros(300, np.int32)
    gpu.run(DIVERGENCE, "collatz", (300 + block - 1) // block, block, out, i32(300))
    assert out.tolist() == [steps_to_one(i + 1) for i in range(300)]


def nested(i: int, x: int) -> int:
    total = 0
    for k in range(x & 15):
        if k % 3 == 0:
            total += k if x & 16 else -2 * k
        elif k % 3 == 1:
            for j in range(k):
                total ^= j * i
        else:
            if total > 100:
                break
            if total < -100:
                continue
            total += 7
        total += 1
    return total


def choose(_: int, v: int) -> int | None:
    match c_remainder(v, 9):
        case 0:
            return v * 3
        case 1:
            return v - 17
        case 2:
            return v ^ 0x55
        case 3:
            return 5 + v + 11
        case 4:
            return 16
        case 5:
            return -v
        case 6:
            return None
        case 7:
            return v << 3
    return 5


def outlives(_: int, x: int) -> int:
    k = 0
    while k < 100 and k * k < x:
        k += 1
    first = k
    while True:
        k += 3
        if k >= x & 63:
            return first * 1000 + k


def gotos(_: int, x: int) -> int:
    a, steps = x & 31, 0
    at = "odd" if a & 1 else "even"
    while True:
        if at == "even":
            steps += 1
            a = a // 2 + 1
            if steps > 20:
                break
            at = "odd" if a % 3 == 0 else "even"
        else:
            steps += 100
            a += 3
            if steps > 500:
                break
            at = "even" if a % 4 == 0 else "odd"
    return steps * 64 + a


@pytest.mark.parametrize("name", ["nested", "choose", "outlives", "gotos"])
@pytest.mark.parametrize("block", [32, 50, 128])
def test_divergence(gpu: Any, random: np.random.Generator, name: str, block: int) -> None:
    n = 500
    x = random.integers(-200, 5000, n).astype(np.int32)
    out = np.full(n, -7, np.int32)
    gpu.run(DIVERGENCE, name, (n + block - 1) // block, block, x, out, i32(n))
    reference = globals()[name]
    expected = [reference(i, int(v)) for i, v in enumerate(x)]
    assert out.tolist() == [-7 if value is None else value for value in expected]


def test_early_returns_around_a_barrier(gpu: Any, random: np.random.Generator) -> None:
    n = 200
    x = random.integers(0, 1000, n).astype(np.int32)
    out = np.full(n, -7, np.int32)
    gpu.run(DIVERGENCE, "early", 2, 128, x, out, i32(n))
    padded = np.concatenate([x, np.zeros(256 - n, np.int32)]).reshape(2, 128)
    seen = padded[:, ::-1] + np.where(np.arange(128) & 1, 3, 4)
    expected = np.where(seen % 5 == 0, -7, seen).reshape(-1)[:n]
    np.testing.assert_array_equal(out, expected)


# --- memory


@pytest.mark.parametrize("n", [1, 31, 32, 1000])
@pytest.mark.parametrize("block", [1, 33, 256])
def test_vecadd(gpu: Any, random: np.random.Generator, n: int, block: int) -> None:
    a, b = random.random(n, np.float32), random.random(n, np.float32)
    out = np.zeros(n, np.float32)
    gpu.run(MEMORY, "vecadd", (n + block - 1) // block, block, a, b, out, i32(n))
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("block", [32, 64, 100])
def test_indices_that_wrap_below_zero(gpu: Any, random: np.random.Generator, block: int) -> None:
    n = 300
    x, out = random.random(n, np.float32), np.zeros(n, np.float32)
    gpu.run(MEMORY, "stencil", (n + block - 1) // block, block, x, out, np.uint32(n))
    padded = np.pad(x, 3)
    np.testing.assert_array_equal(out, padded[:n] + 2 * padded[6 : n + 6])


@pytest.mark.parametrize("shape", [(16, 16), (40, 70), (1, 33)])
def test_transpose(gpu: Any, random: np.random.Generator, shape: tuple[int, int]) -> None:
    x = random.random(shape, np.float32)
    out = np.zeros(shape[::-1], np.float32)
    grid = ((shape[1] + 15) // 16, (shape[0] + 15) // 16)
    gpu.run(MEMORY, "transpose", grid, (16, 16), x, out, i32(shape[0]), i32(shape[1]))
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("name", ["sgemm", "sgemm_rows"])
@pytest.mark.parametrize("size", [(32, 32, 32), (50, 70, 41), (1, 5, 100)])
def test_matrix_products(gpu: Any, random: np.random.Generator, name: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = random.random((m, k), np.float32), random.random((k, n), np.float32)
    c = np.zeros((m, n), np.float32)
    tile, block = (16, (16, 16)) if name == "sgemm" else (32, (32, 8))
    gpu.run(MEMORY, name, ((n + tile - 1) // tile, (m + tile - 1) // tile), block, a, b, c, i32(m), i32(n), i32(k))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@pytest.mark.parametrize("block", [32, 64, (16, 4)])
def test_vector_loads(gpu: Any, random: np.random.Generator, block: Any) -> None:
    n = 90 if isinstance(block, int) else 16
    a = random.random((n, 4), np.float32)
    out = np.zeros_like(a)
    gpu.run(MEMORY, "vec4", 3 if isinstance(block, int) else 1, block, a, out, i32(n))
    np.testing.assert_array_equal(out, np.stack([a[:, 0] * 2, a[:, 1] + 1, a[:, 2] - 1, -a[:, 3]], 1))


def test_small_vectors(gpu: Any, random: np.random.Generator) -> None:
    n = 100
    a = random.random((n, 2)) * 100
    b, c = np.zeros((n, 2), np.int16), np.zeros((n, 4), np.uint8)
    gpu.run(MEMORY, "pairs", 2, 64, a, b, c, i32(n))
    i = np.arange(n)
    np.testing.assert_array_equal(b, np.stack([a[:, 0], a[:, 1] * 2], 1).astype(np.int16))
    np.testing.assert_array_equal(c, np.stack([i, i + 1, i + 2, a[:, 0]], 1).astype(np.uint8))


def test_bytes_and_shorts(gpu: Any, random: np.random.Generator) -> None:
    n = 77
    a = random.integers(-128, 128, n).astype(np.int8)
    b = random.integers(0, 65536, n).astype(np.uint16)
    p = random.integers(0, 2, n).astype(np.uint8)
    out = np.zeros(n, np.int32)
    gpu.run(MEMORY, "bytes", 3, 32, a, b, p, out, i32(n))
    np.testing.assert_array_equal(out, a.astype(int) * 3 + np.where(p, b.astype(int), -b.astype(int)))


@pytest.mark.parametrize("block", [(5, 3, 2), (32, 2, 1), (8, 8, 4), (16, 3, 3), (1, 40), (1, 1, 33), (64,)])
def test_three_dimensional_blocks_and_grids(gpu: Any, block: tuple[int, ...]) -> None:
    grid = (3, 2, 4)
    x, y, z = (*block, 1, 1)[:3]
    out = np.zeros((4, 2, 3, z, y, x), np.int32)
    gpu.run(MEMORY, "where", grid, block, out)
    index = np.indices(out.shape)
    weights = (100000, 10000, 1000, 100, 10, 1)
    np.testing.assert_array_equal(out, sum(w * i for w, i in zip(weights, index, strict=False)))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_struct_by_value_and_local_array(gpu: Any, random: np.random.Generator, k: int) -> None:
    data, out = random.random(32, np.float32), np.zeros(32, np.float32)
    scale = (1.0, 2.0, 3.0, 4.0)
    settings = struct.pack("<4fi4xdQ", *scale, 9, 0.5, gpu.address(data))
    gpu.run(MEMORY, "settings", 1, 32, settings, out, i32(k), reached=(data,))
    expected = []
    for i in range(32):
        own = [0.0] * 8
        for j in range(8):
            own[j * k & 7] = j + i
        expected.append(np.float32(scale[i & 3]) * data[i] + np.float32(own[(i + k) & 7]) + np.float32(9.5))
    np.testing.assert_allclose(out, np.array(expected), rtol=1e-6)


def test_module_variables(gpu: Any) -> None:
    out = np.zeros(64, np.float32)
    before = int(gpu.read_global(MEMORY, "counter", np.int32)[0])
    gpu.run(MEMORY, "variables", 1, 64, out)
    i = np.arange(64)
    np.testing.assert_array_equal(out, (i % 4 + 1) + np.where(i % 3 == 0, 0.5, np.where(i % 3 == 1, 0.25, 0)))
    assert int(gpu.read_global(MEMORY, "counter", np.int32)[0]) == before + 11


def test_each_load_has_its_own_variables(gpu: Any) -> None:
    handles = [gpu.compiler.load(MEMORY.encode()) for _ in range(2)]
    bases = [gpu.compiler.describe(handle)[1] for handle in handles]
    assert bases[0] != bases[1]
    for handle in handles:
        gpu.compiler.unload(handle)


def test_loads_share_code_that_has_no_address_of_a_variable(gpu: Any) -> None:
    """It stays as long as one of them."""
    handles = [gpu.compiler.load(MEMORY.encode()) for _ in range(2)]
    kernels = [kernel.name for kernel in gpu.compiler.describe(handles[0])[0].kernels]

    def entries(name: str, block: int) -> list[int]:
        return [gpu.compiler.compile(handle, kernels.index(name), (block, 1, 1)) for handle in handles]

    shared, own = entries("vecadd", 96), entries("variables", 96)
    assert shared[0] == shared[1]
    assert own[0] != own[1]
    gpu.compiler.unload(handles.pop(0))
    code = ctypes.string_at(shared[0], 16)
    gc.collect()
    assert entries("vecadd", 96) == shared[:1]
    assert ctypes.string_at(shared[0], 16) == code
    gpu.compiler.unload(handles.pop())
    assert not [key for key in gpu.compiler._placed if key[1][:2] == (kernels.index("vecadd"), (96, 1, 1))]


@pytest.mark.parametrize("block", [32, 64, 256])
def test_scan_in_dynamic_shared_memory(gpu: Any, random: np.random.Generator, block: int) -> None:
    x = random.integers(0, 100, 2 * block).astype(np.int32)
    out = np.zeros_like(x)
    gpu.run(MEMORY, "scan", 2, block, x, out, dynamic=4 * block)
    np.testing.assert_array_equal(out, np.cumsum(x.reshape(2, block), 1).reshape(-1))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_generic_pointers(gpu: Any, which: int) -> None:
    x = np.arange(64, dtype=np.float32) * 3
    fixed, dynamic, own = np.arange(64.0), 100 + np.arange(64.0), x.astype(np.float64)
    for i, array in enumerate((fixed, dynamic, own)):
        array += 1000 * (i == which)
    expected = fixed + 2 * dynamic + (own if which == 2 else 0)
    gpu.run(MEMORY, "generic", 1, 64, x, i32(which), dynamic=256)
    np.testing.assert_array_equal(x, expected.astype(np.float32))


def polynomial(x: np.ndarray, degree: np.ndarray) -> np.ndarray:
    total = np.zeros_like(x)
    for i in range(3, -1, -1):
        total = np.where(i <= degree, total * x + np.float32(i), total)
    return total


def test_device_functions(gpu: Any, random: np.random.Generator) -> None:
    n = 100
    x = random.random(n, np.float32)
    given = x.copy()
    gpu.run(MEMORY, "calls", 2, 64, x, i32(n))
    i = np.arange(n)
    a = polynomial(given, i & 3)
    b = polynomial(a, np.full(n, 2))
    a, b = np.where(i & 1, b, a), np.where(i & 1, a, b)
    np.testing.assert_allclose(x, 2 * b - 4 * given + 6 * a, rtol=1e-5)


def test_functions_that_call_functions(gpu: Any) -> None:
    """nvcc names the variables of every call alike, so a caller's and a callee's differ only by the call."""

    def function(name: str, body: str) -> str:
        return f"""
.func (.param .b32 r) {name}(.param .b32 {name}_x)
{{
    .reg .b32 %a, %b;
    ld.param.b32 %a, [{name}_x];
    {body}
    st.param.b32 [r], %b;
    ret;
}}"""

    def call(name: str) -> str:
        return f"""{{
    .param .b32 param0; .param .b32 retval0;
    st.param.b32 [param0], %b;
    call.uni (retval0), {name}, (param0);
    ld.param.b32 %b, [retval0];
    }}"""

    inner = function("inner", "mad.lo.s32 %b, %a, 10, 1;")
    outer = function("outer", f"add.s32 %b, %a, 1; {call('inner')} add.s32 %b, %b, %a;")
    kernel = f""".visible .entry k(.param .u64 p)
{{
    .reg .b64 %p;
    .reg .b32 %b;
    ld.param.u64 %p, [p];
    ld.global.u32 %b, [%p];
    {call("outer")}
    st.global.u32 [%p], %b;
    ret;
}}"""
    x = np.array([7], np.int32)
    gpu.run(HEADER + inner + outer + kernel, "k", 1, 1, x)
    assert x[0] == (7 + 1) * 10 + 1 + 7


def test_doubles(gpu: Any, random: np.random.Generator) -> None:
    x = random.standard_normal(90) * 10
    y = np.zeros(90)
    gpu.run(MEMORY, "doubles", 3, 32, x, y, i32(90))
    np.testing.assert_allclose(y, np.sqrt(np.abs(x)) / (1 + x * x) + np.floor(x), rtol=1e-14)


def test_library_functions(gpu: Any, random: np.random.Generator) -> None:
    x = np.concatenate([random.standard_normal(90) * 5, [0, 1, 2e5, -3e5, 40, 0.1]]).astype(np.float32)
    y = np.zeros_like(x)
    gpu.run(MEMORY, "functions", 3, 32, x, y, i32(len(x)))
    d = x.astype(np.float64)
    m = np.abs(d)
    with np.errstate(over="ignore"):
        expected = np.sin(d) + np.cos(2 * d) * np.exp(-d) + np.log(1 + m) + np.tanh(d) + m**1.5 + np.sqrt(m)
    usable = np.abs(expected) < 1e30
    np.testing.assert_allclose(y[usable], expected[usable], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("size", [96, 256])
def test_launches_large_enough_for_all_cores(gpu: Any, random: np.random.Generator, size: int) -> None:
    a, b = random.random((size, size), np.float32), random.random((size, size), np.float32)
    c = np.zeros((size, size), np.float32)
    for _ in range(3):
        gpu.run(MEMORY, "sgemm", (size // 16, size // 16), (16, 16), a, b, c, i32(size), i32(size), i32(size))
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)
        c[:] = 0
    x = random.integers(0, 256, 1 << 20).astype(np.uint8)
    h = np.zeros(256, np.uint32)
    gpu.run(WARP, "histogram", 200, 256, x, h, i32(len(x)))
    np.testing.assert_array_equal(h, np.bincount(x, minlength=256))


# --- warps


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (4, 256), (3, 1024)])
def test_reduction(gpu: Any, random: np.random.Generator, grid: int, block: int) -> None:
    x = random.integers(0, 8, 20000).astype(np.float32)
    out = np.zeros(1, np.float32)
    gpu.run(WARP, "reduce", grid, block, x, out, i32(len(x)))
    assert out[0] == x.sum()


@pytest.mark.parametrize("by", [0, 1, 5, 9, 31])
def test_shuffles(gpu: Any, random: np.random.Generator, by: int) -> None:
    x = random.integers(0, 1000, 32).astype(np.int32)
    out = np.zeros((7, 32), np.int32)
    gpu.run(WARP, "shuffles", 1, 32, x, out, i32(by))
    t = np.arange(32)
    same, eight, sixteen = t, t & ~7, t & ~15
    sources = [
        np.where(t >= 3, t - 3, same),
        np.where((t & 7) + 5 < 8, t + 5, same),
        t ^ 6,
        t * 7 & 31,
        sixteen | (by & 15),
        np.where(t - by >= eight, t - by, same),
        t ^ 1,
    ]
    for row, source in zip(out, sources, strict=False):
        np.testing.assert_array_equal(row, x[source])


def test_votes_and_matches(gpu: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 10, 32).astype(np.int32)
    out = np.zeros((8, 32), np.uint32)
    gpu.run(WARP, "votes", 1, 32, x, out)

    def bits(condition: Any) -> int:
        return sum(1 << i for i in range(32) if condition[i])

    assert set(out[0]) == {bits(x > 3)}
    assert set(out[1]) == {int((x == 5).any()) + 2}
    assert out[2].tolist() == [bits(x == v) for v in x]
    assert set(out[3]) == {1}
    assert set(out[4]) == {int(x.sum())}
    assert set(out[5].view(np.int32)) == {int(x.max()) - 50}
    odd = (x & 1).astype(bool)
    assert set(out[6][odd]) == {bits(odd)}
    assert not out[6][~odd].any()
    assert out[7].tolist() == [int(odd[:i].sum()) for i in range(32)]


def test_histogram(gpu: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 256, 5000).astype(np.uint8)
    h = np.zeros(256, np.uint32)
    gpu.run(WARP, "histogram", 3, 128, x, h, i32(len(x)))
    np.testing.assert_array_equal(h, np.bincount(x, minlength=256))


def test_atomics(gpu: Any) -> None:
    n = 4 * 96
    i = np.array([5, 1000, -1000, 0, 0], np.int32)
    u = np.array([0xFFFFFFFF, 0, 0, 0], np.uint32)
    totals, f, d = np.zeros(2, np.uint64), np.zeros(1, np.float32), np.zeros(1)
    old = np.zeros(n, np.int32)
    gpu.run(WARP, "atomics", 4, 96, i, u, totals, f, d, old)
    assert Counter(old.tolist()) == Counter(range(5, n + 5))
    assert i.tolist() == [n + 5, -50, n - 1, int(np.bitwise_xor.reduce(np.arange(n))), 2 * n]
    decremented = 0
    for _ in range(n):
        decremented = 50 if decremented == 0 or decremented > 50 else decremented - 1
    assert u.tolist() == [0xFFFFFF00, 0xFFFFFFFF, n % 100, decremented]
    assert totals.tolist() == [sum(range(n)) << 20, (n - 1) ** 2]
    assert (f[0], d[0]) == (n / 2, n / 4)


@pytest.mark.parametrize("block", [64, 256])
def test_barriers_after_a_warp_has_left(gpu: Any, block: int) -> None:
    out = np.full(block, -1, np.int32)
    gpu.run(WARP, "stages", 1, block, out, i32(6))
    living = block - 32
    box = np.arange(living)
    for _ in range(6):
        box = np.roll(box, -(32 % living)) + 1
    np.testing.assert_array_equal(out[:living], box)
    assert (out[living:] == -1).all()


def test_barriers_that_count(gpu: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 10, 96).astype(np.int32)
    out = np.zeros(96, np.int32)
    gpu.run(WARP, "counts", 1, 96, x, out)
    assert set(out) == {int((x > 3).sum()) * 4 + 2}


def test_halves(gpu: Any, random: np.random.Generator) -> None:
    a, b = random.random(80).astype(np.float16), random.random(80).astype(np.float16)
    out = np.zeros(80, np.float32)
    gpu.run(WARP, "halves", 3, 32, a, b, out, i32(80))
    np.testing.assert_array_equal(out, (a + b).astype(np.float32) + (a * b).astype(np.float32))


def test_bfloats(gpu: Any, random: np.random.Generator) -> None:
    import ml_dtypes

    a = random.random(80).astype(ml_dtypes.bfloat16)
    out = np.zeros(80, np.uint16)
    gpu.run(WARP, "bfloats", 3, 32, a.view(np.uint16), out, i32(80))
    expected = (a.astype(np.float32) * np.float32(3)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out, expected.view(np.uint16))


def test_a_trap_is_an_error_with_its_place(gpu: Any) -> None:
    x = np.arange(64, dtype=np.int32)
    with pytest.raises(RuntimeError, match=r"719: trap at PTX line \d+, block \(0, 0, 0\), warp 0"):
        gpu.run(WARP, "fails", 1, 64, x)
    y = np.arange(64, dtype=np.int32) + 100
    gpu.run(WARP, "fails", 1, 64, y)
    assert (y == 1).all()


def test_unmet_barriers_are_an_error(gpu: Any) -> None:
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
  .reg .b32 %r;
  .reg .pred %p;
  mov.u32 %r, %warpid;
  setp.eq.u32 %p, %r, 0;
  @%p bar.sync 1;
  @!%p bar.sync 2;
  ret;
}"""
    with pytest.raises(RuntimeError, match="barrier deadlock: warp 0 waits at barrier 1"):
        gpu.run(text, "k", 1, 64)
