"""Products without a device: operands, batches, the choice of a kernel, and launches."""

from __future__ import annotations

import math
import struct
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kaas
from cutlass_blas import AlignmentWarning, Epilogue, Matrix, adapter, batches, choice, errors, gemm, gemms, records
from cutlass_blas.batches import LAUNCH_COUNT, LAUNCH_TILES
from cutlass_blas.instances import CORE, Instance
from cutlass_blas.operands import KINDS, Operand, operand
from cutlass_blas.records import Key
from cutlass_blas.scalars import BYTES, coefficient, is_zero, one

few = settings(max_examples=200, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path) -> Iterator[None]:
    """Choose kernels by the table only, without this machine's records and without other tests' plans."""
    records.use(tmp_path / "records.sqlite3")
    gemms.forget()
    yield
    records.use(None)
    gemms.forget()


def buffer(name: str, *shape: int, dtype: str = "float32") -> kaas.Buffer:
    return kaas.Buffer(name, shape, dtype)


def matrices(m: int, n: int, k: int, dtype: str = "float32") -> tuple[kaas.Buffer, kaas.Buffer, kaas.Buffer]:
    return buffer("a", m, k, dtype=dtype), buffer("b", k, n, dtype=dtype), buffer("c", m, n, dtype=dtype)


def argument(kernel: kaas.Kernel) -> kaas.Struct:
    (found,) = kernel.args
    assert isinstance(found, kaas.Struct)
    return found


def accesses(kernel: kaas.Kernel) -> list[tuple[str, str, int]]:
    return [(type(each).__name__, each.buffer.name, each.offset_bytes) for each in kernel.accesses]


# --- operands


@few
@given(
    st.integers(0, 60), st.integers(0, 5), st.integers(0, 5), st.none() | st.integers(0, 8), st.integers(0, 70),
    st.none() | st.integers(0, 3), st.none() | st.integers(0, 12), st.booleans(),
)  # fmt: skip
def test_a_view_is_refused_exactly_if_an_element_lies_outside(
    size: int, rows: int, columns: int, ld: int | None, offset: int, count: int | None, stride: int | None, column: bool
) -> None:
    stride = stride if count is not None else None
    inner, outer = (rows, columns) if column else (columns, rows)
    step = max(inner, 1) if ld is None else ld
    between = (step * outer if stride is None else stride) if count is not None else 0
    entries = range(1 if count is None else count)
    elements = [offset + e * between + o * step + i for e, o, i in product(entries, range(outer), range(inner))]
    view = Matrix(buffer("x", size), rows, columns, ld, offset, count=count, stride=stride)
    if offset > size or step < max(1, inner) or max(elements, default=-1) >= size:
        with pytest.raises(errors.InvalidOperand) as caught:
            operand("a", view, column)
        assert (caught.value.operand, caught.value.buffer) == ("a", "x")
    else:
        found = operand("a", view, column)
        assert found.shape == ((rows, columns) if count is None else (count, rows, columns))
        first = [found.place(entry)[1] for entry in entries]
        assert sorted(f + o * found.ld + i for f, o, i in product(first, range(outer), range(inner))) == sorted(
            elements
        )


@few
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 8), st.lists(st.integers(0, 40), min_size=2, max_size=5))
def test_a_list_that_is_written_is_refused_exactly_if_an_element_is_written_twice(
    inner: int, outer: int, ld: int, offsets: list[int]
) -> None:
    ld = max(ld, inner)
    c = buffer("c", 100)
    written = Counter(f + o * ld + i for f, o, i in product(offsets, range(outer), range(inner)))
    views = operand("c", [Matrix(c, outer, inner, ld, offset) for offset in offsets], False)
    if max(written.values()) > 1:
        with pytest.raises(errors.OverlappingOperands):
            batches.check_apart(views, inner, outer)
    else:
        batches.check_apart(views, inner, outer)
        assert bool(batches.covered(views, inner * outer)) == (len(written) == 100)


@few
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 8), st.integers(0, 12), st.integers(0, 4))
def test_a_batch_that_is_written_is_refused_exactly_if_an_element_is_written_twice(
    inner: int, outer: int, ld: int, stride: int, count: int
) -> None:
    ld = max(ld, inner)
    written = Counter(e * stride + o * ld + i for e, o, i in product(range(count), range(outer), range(inner)))
    size = max(written, default=0) + 1
    view = operand("c", Matrix(buffer("c", size), outer, inner, ld, count=count, stride=stride), False)
    if max(written.values(), default=0) > 1:
        with pytest.raises(errors.OverlappingOperands):
            batches.check_apart(view, inner, outer)
    else:
        batches.check_apart(view, inner, outer)
        assert batches.covered(view, inner * outer) == ({"c"} if len(written) == size else set())


def test_buffers_that_views_fill_together_are_written_whole() -> None:
    c, d = buffer("c", 4, 6), buffer("d", 3, 3)
    tiles = [Matrix(c, 2, 3, 6, row * 12 + column * 3) for row in range(2) for column in range(2)]
    assert batches.covered(operand("c", tiles, False), 6) == {"c"}
    assert batches.covered(operand("c", tiles[:3], False), 6) == set()
    assert batches.covered(operand("c", [d], False), 9) == {"d"}


@few
@given(st.integers(1, 300_000), st.integers(1, 1 << 27), st.sampled_from([32, 64, 128, 256]))
def test_pieces_are_all_of_a_product_once_and_fit_a_grid(count: int, columns: int, tile: int) -> None:
    made = batches.pieces(count, columns, tile, LAUNCH_COUNT)
    assert sum(piece.entries * piece.columns for piece in made) == count * columns
    assert len({(piece.first, piece.column) for piece in made}) == len(made)
    for piece in made:
        assert piece.first % LAUNCH_COUNT == 0 == piece.column % tile
        assert 0 < piece.entries <= LAUNCH_COUNT
        assert 0 < -(-piece.columns // tile) <= LAUNCH_TILES


# --- alpha and beta


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [("f32", 2.5, "<f"), ("f32", 3, "<f"), ("f64", -1, "<d"), ("f32", True, "<f"), ("f32", math.inf, "<f")],
)
def test_numbers_become_bytes_of_their_kind(kind: str, value: Any, code: str) -> None:
    assert coefficient("alpha", value, kind) == (struct.pack(code, value), None)


@pytest.mark.parametrize("kind", BYTES)
def test_zero_and_one_of_each_kind(kind: str) -> None:
    assert one(kind) == coefficient("alpha", 1, kind)[0]
    zeros = [0, -0.0, 1e-400] + [complex(0, -0.0), complex(-0.0, 0), complex(-0.0, -0.0)] * kind.startswith("c")
    assert all(is_zero(coefficient("beta", zero, kind)[0], kind) for zero in zeros)
    others = [1, -1, math.nan, math.inf] + [1j, complex(-0.0, 1)] * kind.startswith("c")
    assert not any(is_zero(coefficient("beta", value, kind)[0], kind) for value in others)


def test_a_beta_too_small_for_its_kind_does_not_read_c() -> None:
    (kernel,) = gemm(*matrices(4, 4, 4), beta=1e-60)
    assert [kind for kind, name, _ in accesses(kernel) if name == "c"] == ["Out", "Out"]


# --- the choice of a kernel

keys = st.builds(
    Key,
    arch=st.sampled_from(["sm_80", "sm_90"]),
    kind=st.sampled_from("sdczhbt"),
    out=st.just(""),
    op_a=st.sampled_from("ntc"),
    op_b=st.sampled_from("ntc"),
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    k=st.integers(1, 200_000),
    align=st.sampled_from([1, 2, 4, 8]),
    align_c=st.sampled_from([1, 2, 4, 8]),
    batch=st.sampled_from([1, 1, 2, 1000]),
    gelu=st.booleans(),
)
OUT = {
    "s": "float32",
    "d": "float64",
    "c": "complex64",
    "z": "complex128",
    "h": "float16",
    "b": "bfloat16",
    "t": "float32",
}


def possible(key: Key) -> Key:
    """Return a key as gemm makes it."""
    ops = [op if key.kind in "cz" or op != "c" else "t" for op in (key.op_a, key.op_b)]
    out = OUT[key.kind]
    align = math.gcd(key.align, choice.WIDEST.get(key.kind, 1))
    align_c = math.gcd(key.align_c, 4 if out == "float32" else 8) if key.kind in "hbt" else 1
    gelu = key.gelu and key.kind not in "cz"
    return key._replace(op_a=ops[0], op_b=ops[1], out=out, align=align, align_c=align_c, gelu=gelu)


def check_serves(key: Key, instance: Instance, slices: int) -> None:
    assert (instance.kind, instance.op_a, instance.op_b) == (key.kind, key.op_a, key.op_b)
    assert key.align % instance.align == 0
    if slices == 1:
        assert (instance.out, instance.gelu) == (key.out, key.gelu)
        assert key.align_c % instance.align_c == 0
    else:  # the finishing kernel does the rest
        assert (instance.out, instance.gelu) == (choice.for_sums(key).out, False)
        assert key.n % instance.align_c == 0


@few
@given(keys.map(possible), st.sampled_from([None, None, 1, 2, 7]))
def test_the_chosen_kernel_fits(key: Key, split: int | None) -> None:
    instance, slices = choice.choose(key, split)
    check_serves(key, instance, slices)
    assert slices >= 1 if split is None else slices == split
    if slices > 1 and split is None:
        assert key.batch == 1
        assert key.k // slices >= 512
    ranked = choice.candidates(key)
    assert len(set(ranked)) == len(ranked)
    assert split is not None or ranked[0] == (instance, slices)
    for pick in ranked:
        check_serves(key, *pick)


@few
@given(keys.map(possible))
def test_the_core_is_preferred_to_kernels_that_have_to_be_built(key: Key) -> None:
    instance, _ = choice.choose(key)
    fitting = [
        x for x in CORE if (x.kind, x.out, x.op_a, x.op_b, x.gelu) == (key.kind, key.out, key.op_a, key.op_b, key.gelu)
    ]
    if any(key.align % x.align == 0 and key.align_c % x.align_c == 0 for x in fitting):
        assert instance in CORE


def key_of(m: int, n: int, k: int, dtype: str = "float32", **options: Any) -> Key:
    return gemms.key_of(*matrices(m, n, k, dtype), **options)


def test_large_matrices_get_large_tiles_and_small_ones_small_ones() -> None:
    sizes = {size: math.prod(choice.choose(key_of(size, size, size))[0].tile[:2]) for size in (64, 4096)}
    assert sizes[64] == 64 * 64
    assert sizes[4096] >= 128 * 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_k_is_split_where_few_tiles_have_a_long_one(arch: str) -> None:
    processors = choice.ARCHITECTURES[arch].processors
    for m, n, k in ((64, 64, 100_000), (128, 32, 1 << 20), (1, 1, 50_000)):
        instance, slices = choice.choose(key_of(m, n, k, arch=arch))
        tiles = -(-m // instance.tile[0]) * -(-n // instance.tile[1])
        assert processors // 2 < tiles * slices <= processors
    for m, n, k in ((4096, 4096, 4096), (512, 512, 512), (64, 64, 700), (20_000, 64, 2000)):
        assert choice.choose(key_of(m, n, k, arch=arch))[1] == 1


def test_measured_choices_are_preferred() -> None:
    key = key_of(300, 300, 300)
    own, *others = choice.candidates(key)
    assert choice.choose(key) == own
    other, slices = others[-1]
    records.store(key, records.Choice(other.name, slices), "a device", 1.0)
    assert choice.choose(key) == (other, slices)
    gemms.forget()
    assert gemm(*matrices(300, 300, 300))[0].symbol == other.name
    assert choice.choose(key._replace(m=301)) != (other, slices)


@pytest.mark.parametrize(
    ("arch", "table"),
    [
        (None, "sm_80"),
        ("sm_80", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_89", "sm_80"),
        ("sm_90a", "sm_90"),
        ("sm_100", "sm_90"),
        ("sm_121", "sm_120"),
    ],
)
def test_a_device_is_served_by_the_newest_table_that_is_not_newer(arch: str | None, table: str) -> None:
    assert choice.architecture(arch) == table


@pytest.mark.parametrize("op_b", ["n", "t"])
@pytest.mark.parametrize(
    ("arch", "shared_bytes"), [(None, 99 << 10), ("sm_89", 99 << 10), ("sm_90", 227 << 10), ("sm_120", 99 << 10)]
)
def test_kernels_fit_into_the_shared_memory_of_all_devices_that_they_are_for(
    arch: str | None, shared_bytes: int, op_b: str
) -> None:
    """A block can have 99 KiB of shared memory on sm_86, sm_89 and sm_120."""
    for dtype in KINDS:
        a, b, c = (kaas.Buffer(name, (4096, 4096), dtype) for name in "abc")
        instance, _ = choice.choose(gemms.key_of(a, b, c, trans_b=op_b, arch=arch))
        assert instance.shared_bytes <= shared_bytes
        if (dtype, arch) == ("float16", "sm_90"):
            assert instance.shared_bytes > 99 << 10, "what is there is used"


@pytest.mark.parametrize("instance", [x for x in CORE if x.stages > 2], ids=lambda x: x.name)
def test_shared_memory_is_that_of_the_tiles_in_flight(instance: Instance) -> None:
    made = adapter.launch(
        instance, 0, 1024, 1024, 1024, 1, (0,) * 4, (1024,) * 4, bytes(16), bytes(16), relu=False
    )  # fmt: skip
    assert made.shared_bytes == instance.shared_bytes


@pytest.mark.parametrize("arch", ["sm_75", "hopper", "sm_", "sm_²", "", 90, []])
def test_unknown_architectures_are_refused(arch: Any) -> None:
    with pytest.raises(errors.InvalidOption) as caught:
        choice.architecture(arch)
    assert (caught.value.option, caught.value.known) == ("arch", ("sm_80", "sm_90", "sm_120"))


# --- alignment


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        (((16, 24), (24, 32), (16, 32)), set()),
        (((16, 23), (23, 32), (16, 32)), {"a"}),
        (((16, 24), (24, 36), (16, 36)), {"b", "c"}),
    ],
)
def test_the_warning_of_narrow_loads_names_the_operand_and_its_leading_dimension(
    shapes: tuple[tuple[int, int], ...], named: set[str]
) -> None:
    a, b, c = (kaas.Buffer(name, shape, "float16") for name, shape in zip("abc", shapes, strict=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gemm(a, b, c)
    assert all(each.category is AlignmentWarning for each in caught)
    words = [str(each.message) for each in caught]
    assert {text.split()[1] for text in words} == named
    by_name = {"a": shapes[0], "b": shapes[1], "c": shapes[2]}
    for text in words:
        assert f"leading dimension {by_name[text.split()[1]][1]}" in text
        assert Path(caught[0].filename) == Path(__file__)  # the line of the caller, not of the library


def test_every_kind_of_misalignment_is_named() -> None:
    x, b, c = (buffer(name, 1000, dtype="float16") for name in "xbc")
    a = [Matrix(x, 8, 8, offset=at) for at in (64, 130, 256)]
    with pytest.warns(AlignmentWarning) as caught:
        gemm(a, Matrix(b, 8, 8, count=3, stride=68), Matrix(c, 8, 8, 16, count=3))
    assert [str(each.message).partition(" because ")[2] for each in caught] == [
        "8 does not divide its offset 130",
        "8 does not divide its stride 68",
    ]


# --- launches


def test_a_known_shape_needs_no_call_of_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = gemm(*matrices(100, 90, 80), alpha=2)

    def refuse(*args: object) -> None:
        raise AssertionError(args)

    monkeypatch.setattr(adapter, "launch", refuse)
    (again,) = gemm(buffer("x", 100, 80), buffer("y", 80, 90), buffer("z", 100, 90), alpha=2)
    assert argument(first).blob == argument(again).blob
    assert accesses(again) == [("In", "x", 0), ("In", "y", 0), ("Out", "z", 0), ("Out", "z", 0)]
    with pytest.raises(AssertionError):
        gemm(*matrices(100, 90, 80), alpha=3)


def test_c_is_read_only_where_the_product_needs_it() -> None:
    a, b, c = matrices(8, 8, 8)
    roles = {
        "whole": (gemm(a, b, c), "Out"),
        "scaled": (gemm(a, b, c, beta=0.5), "InOut"),
        "chosen later": (gemm(a, b, c, beta=kaas.Scalar("beta", "f32")), "InOut"),
        "a part": (gemm(a, b, Matrix(buffer("c", 8, 9), 8, 8, 9)), "InOut"),
        "all parts": (gemm(a, b, [Matrix(buffer("c", 16, 8), 8, 8, offset=at) for at in (0, 64)]), "Out"),
    }
    for kernels, role in roles.values():
        assert {kind for kernel in kernels for kind, name, _ in accesses(kernel) if name == "c"} == {role}


def test_scalars_are_patched_where_the_struct_has_them() -> None:
    alpha, beta = kaas.Scalar("alpha", "f32"), kaas.Scalar("beta", "f32")
    (fixed,) = gemm(*matrices(8, 8, 8), alpha=3, beta=4)
    (patched,) = gemm(*matrices(8, 8, 8), alpha=alpha, beta=beta)
    found = dict(argument(patched).scalars)
    assert sorted(each.name for each in found.values()) == ["alpha", "beta"]
    for at, scalar in found.items():
        assert struct.unpack_from("<f", argument(fixed).blob, at) == ({"alpha": 3, "beta": 4}[scalar.name],)


def test_a_batch_beyond_the_grid_takes_several_launches() -> None:
    count = 2 * LAUNCH_COUNT + 3
    kernels = gemm(buffer("a", count, 2, 2), buffer("b", count, 2, 2), buffer("c", count, 2, 2))
    assert [kernel.grid[2] for kernel in kernels] == [LAUNCH_COUNT, LAUNCH_COUNT, 3]
    offsets = [16 * LAUNCH_COUNT * launch for launch in range(3)]
    assert [at for kernel in kernels for _, name, at in accesses(kernel) if name == "a"] == offsets
    task = kaas.KTask(kernels, ["c"])
    assert [each.name for each in task.inputs] == ["a", "b"]  # all launches together write all of c


def test_a_batch_whose_b_is_shared_is_one_matrix_of_more_rows() -> None:
    b, tall = buffer("b", 6, 5), gemm(buffer("a", 12, 6), buffer("b", 6, 5), buffer("c", 12, 5))
    assert (
        accesses(gemm(buffer("a", 3, 4, 6), b, buffer("c", 3, 4, 5))[0])
        == accesses(tall[0])[:2] + [("Out", "c", 0)] * 2
    )
    joined = {
        "whole": gemm(buffer("a", 3, 4, 6), b, buffer("c", 3, 4, 5)),
        "with gaps between rows": gemm(Matrix(buffer("a", 100), 4, 6, 7, count=3), b, buffer("c", 3, 4, 5)),
        "columns": gemm(buffer("a", 4, 6), buffer("b", 3, 6, 5), buffer("c", 3, 4, 5), layout="column"),
    }
    apart = {
        "transposed": gemm(buffer("a", 3, 6, 4), b, buffer("c", 3, 4, 5), trans_a="t"),
        "with gaps between matrices": gemm(Matrix(buffer("a", 100), 4, 6, count=3, stride=25), b, buffer("c", 3, 4, 5)),
        "a is shared": gemm(buffer("a", 4, 6), buffer("b", 3, 6, 5), buffer("c", 3, 4, 5)),
        "both are": gemm(buffer("a", 4, 6), b, buffer("c", 3, 4, 5)),
    }
    assert {case for case, kernels in (joined | apart).items() if kernels[0].grid[2] == 1} == joined.keys()
    assert argument(joined["whole"][0]).blob == argument(tall[0]).blob


@pytest.mark.parametrize("trans_b", ["n", "t"])
def test_columns_beyond_the_grid_take_several_launches(trans_b: str) -> None:
    tile = 64
    wide = LAUNCH_TILES * tile
    n, k = wide + 5, 3
    b = buffer("b", *((k, n) if trans_b == "n" else (n, k)))
    epilogue = Epilogue(bias=buffer("bias", n))
    kernels = gemm(buffer("a", 2, k), b, buffer("c", 2, n), trans_b=trans_b, epilogue=epilogue)
    wide = LAUNCH_TILES * int(kernels[0].symbol.split("_")[2].split("x")[1])
    assert len(kernels) == -(-n // wide)
    assert all(kernel.grid[1] <= 65_535 for kernel in kernels)
    step = 4 * (wide if trans_b == "n" else wide * k)
    for index, kernel in enumerate(kernels):
        by_name = {name: at for _, name, at in accesses(kernel)}
        assert by_name == {"a": 0, "b": index * step, "c": 4 * index * wide, "bias": 4 * index * wide}
    assert [each.name for each in kaas.KTask(kernels, ["c"]).inputs] == ["a", "b", "bias"]


@pytest.mark.parametrize("options", [{"k": 0}, {"alpha": 0}, {"alpha": -0.0}, {"m": 0}, {"n": 0}])
def test_where_nothing_is_multiplied_one_kernel_is_left_and_all_operands_stay_inputs(options: dict[str, Any]) -> None:
    sizes = {"m": 4, "n": 5, "k": 6, **options}
    alpha = sizes.pop("alpha", 1)
    (kernel,) = gemm(*matrices(**sizes), alpha=alpha, beta=2)
    assert kernel.symbol == "finish_float32"
    assert {each.name for each in kaas.KTask([kernel], ["c"]).inputs} == {"a", "b", "c"}


def test_the_workspace_of_a_split_k_is_a_temporary_that_one_kernel_fills() -> None:
    kernels = gemm(*matrices(40, 50, 10_000), split_k=4, beta=1)
    task = kaas.KTask(kernels, ["c"])
    (space,) = task.temporaries
    assert space.shape == (1, kernels[0].grid[2], 40, 50)
    assert space.dtype == "float32"
    assert [each.name for each in task.inputs] == ["a", "b", "c"]
    assert task.edges == ((0, 1),)


def test_slices_are_as_many_as_there_are_whole_loads_in_k() -> None:
    kernels = gemm(*matrices(8, 8, 5), split_k=100)
    assert kernels[0].grid[2] == 2  # of 4 elements, and of 1
    assert kaas.KTask(kernels, ["c"]).temporaries[0].shape == (1, 2, 8, 8)


def test_a_list_is_checked_though_its_shape_is_known() -> None:
    a, b, c = buffer("a", 4, 4), buffer("b", 4, 4), buffer("c", 100)
    gemm([a, a], [b, b], [Matrix(c, 4, 4, offset=at) for at in (0, 16)])
    with pytest.raises(errors.OverlappingOperands):
        gemm([a, a], [b, b], [Matrix(c, 4, 4, offset=at) for at in (0, 15)])


@pytest.mark.parametrize("slices", [0, -1, 1.5, "2", True, 1 << 16])
def test_slices_are_a_number_that_a_grid_can_hold(slices: Any) -> None:
    with pytest.raises(errors.InvalidOption) as caught:
        gemm(*matrices(8, 8, 8), split_k=slices)
    assert (caught.value.option, caught.value.value) == ("split_k", repr(slices))


def test_operands_of_a_list_are_put_into_tables_in_order() -> None:
    a = [buffer(f"a{i}", 4, 4) for i in range(3)]
    c = buffer("c", 3, 4, 4)
    (kernel,) = gemm(a, buffer("b", 4, 4), c)
    tables = [target for _, target in argument(kernel).pointers]
    assert all(isinstance(table, kaas.Pointers) for table in tables)
    assert accesses(kernel)[:6] == [*(("In", f"a{i}", 0) for i in range(3)), *[("In", "b", 0)] * 3]
    assert accesses(kernel)[6:9] == [("Out", "c", 64 * i) for i in range(3)]


def test_an_operand_places_its_entries() -> None:
    shared = operand("a", buffer("x", 2, 3), False)
    strided = operand("a", buffer("x", 4, 2, 3), True)
    assert isinstance(shared, Operand)
    assert [shared.place(entry)[1] for entry in range(3)] == [0, 0, 0]
    assert [strided.place(entry)[1] for entry in range(3)] == [0, 6, 12]
    assert (shared.ld, strided.ld) == (3, 2)
