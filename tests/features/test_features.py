"""The features of the published system's requests, one test each; the pool's features are in tests/api."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest, RunStats

SOURCE = Path(__file__).with_name("kernels.ptx")
LIBRARY = kaas.Library.from_file(SOURCE)
N = 2048
COUNT = kaas.i32(N)
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def executor(softgpu: tuple[int, ...]) -> Any:
    made = Executor(open_device("software", len(softgpu) - 1), cache_bytes=32 << 20)
    yield made
    made.close()


def kernel(symbol: str, *args: Any, library: kaas.Library = LIBRARY, **launch: Any) -> kaas.Kernel:
    shape: dict[str, Any] = {"grid": N // 256, "block": 256, **launch}
    return kaas.Kernel(library, symbol, args=args, **shape)


def run(executor: Executor, task: kaas.KTask, client: str = "", **inputs: Any) -> tuple[dict[str, Array], RunStats]:
    sources = {name: value if isinstance(value, InputSource) else InputSource(value) for name, value in inputs.items()}
    result = executor.run(RunRequest(task, sources, {}, client))
    return result.outputs, result.stats


def ints(start: int = 0, n: int = N) -> Array:
    return np.arange(start, start + n, dtype=np.int32)


def buffer(name: str, n: int = N, **options: Any) -> kaas.Buffer:
    return kaas.Buffer(name, n, "int32", **options)


X, Y, Z = map(buffer, "xyz")


def test_a_list_of_kernels_is_repeated(executor: Executor) -> None:
    task = kaas.KTask([kernel("increment", kaas.InOut(X), COUNT)] * 2, [X], iterations=5)
    assert (run(executor, task, x=ints())[0]["x"] == ints(10)).all()


def test_in_place_returns_and_leaves_the_object_alone(executor: Executor) -> None:
    task = kaas.KTask([kernel("increment", kaas.InOut(X), COUNT)], [X])
    mine = ints()
    for _ in range(2):
        assert (run(executor, task, x=InputSource(key=b"in place", fetch=lambda: mine))[0]["x"] == ints(1)).all()
    assert (mine == ints()).all()


def test_literals_of_every_width_in_the_kernels_own_order(executor: Executor) -> None:
    out, one = kaas.Buffer("out", 18, "float64"), buffer("one", 1)
    args: list[Any] = [
        kaas.i8(-8), kaas.Out(out), kaas.i16(-16), kaas.i32(-32), kaas.i64(-64), kaas.u8(8), kaas.u16(16), kaas.u32(32),
        kaas.u64(64), kaas.In(one), kaas.f32(0.5), kaas.f64(0.25), kaas.c64(1 + 2j), kaas.c128(3 + 4j),
        kaas.boolean(True), kaas.f16(1.0), kaas.Null,
    ]  # fmt: skip
    task = kaas.KTask([kaas.Kernel(LIBRARY, "widths", 1, 1, args)], [out])
    expected = [-8, -16, -32, -64, 8, 16, 32, 64, 9, 0.5, 0.25, 1, 2, 3, 4, 1, 0x3C00, 1]
    assert run(executor, task, one=ints(9, 1))[0]["out"].tolist() == expected


def test_dynamic_shared_memory_above_48_kb(executor: Executor) -> None:
    launch: dict[str, Any] = {"grid": N // 1024, "block": 1024, "shared_bytes": 64 << 10}
    task = kaas.KTask([kernel("large_shared", kaas.In(X), kaas.Out(Y), **launch)], [Y])
    assert (run(executor, task, x=ints())[0]["y"].reshape(-1, 1024) == ints().reshape(-1, 1024)[:, ::-1]).all()


def test_offsets_on_inputs_and_outputs(executor: Executor) -> None:
    half, target = kaas.i32(N // 2), buffer("target", init="zero")
    args = [kaas.In(X, 4 * N // 2), kaas.In(X), kaas.InOut(target, 4 * N // 2), half]
    outputs, _ = run(executor, kaas.KTask([kernel("subtract", *args)], [target]), x=ints())
    assert outputs["target"].tolist() == [0] * (N // 2) + [N // 2] * (N // 2)


def test_one_object_as_several_buffers_has_one_copy(executor: Executor) -> None:
    task = kaas.KTask([kernel("subtract", kaas.In(X), kaas.In(Y), kaas.Out(Z), COUNT)], [Z])
    both = np.concatenate([ints(5), ints()])
    views: dict[str, Any] = {
        n: InputSource(key=b"both", fetch=lambda: both, offset_bytes=at) for n, at in (("x", 0), ("y", 4 * N))
    }
    outputs, stats = run(executor, task, **views)
    assert (outputs["z"] == 5).all()
    assert (stats.misses, stats.miss_bytes) == (1, both.nbytes)


def test_temporaries_are_clear_for_another_client(executor: Executor) -> None:
    """The second task only copies its temporary out."""
    secret, seen = buffer("secret"), buffer("seen")
    write = kaas.KTask(
        [
            kernel("subtract", kaas.In(X), kaas.In(Y), kaas.Out(secret), COUNT),
            kernel("subtract", kaas.In(secret), kaas.In(Y), kaas.Out(seen), COUNT),
        ],
        [seen],
    )
    peek = kaas.KTask(
        [
            kernel("increment", kaas.Out(secret), kaas.i32(0)),  # declares a write, and writes nothing
            kernel("subtract", kaas.In(secret), kaas.In(Y), kaas.Out(seen), COUNT),
        ],
        [seen],
    )
    zeros = np.zeros(N, np.int32)
    run(executor, write, "ann", x=ints(77), y=zeros)
    assert (run(executor, peek, "bob", y=zeros)[0]["seen"] == 0).all()


def test_constants_stay_on_the_device(executor: Executor) -> None:
    task = kaas.KTask([kernel("subtract", kaas.In(X), kaas.In(Y), kaas.Out(Z), COUNT)], [Z])
    constant = InputSource(key=b"constant", fetch=lambda: ints(1))
    first, second = (run(executor, task, x=ints(), y=constant)[1] for _ in range(2))
    assert (first.misses, second.misses, second.hits) == (1, 0, 1)


def test_several_outputs_in_their_order(executor: Executor) -> None:
    kernels = [
        kernel("subtract", kaas.In(X), kaas.In(Y), kaas.Out(Z), COUNT),
        kernel("increment", kaas.InOut(X), COUNT),
    ]
    for names in (["x", "z"], ["z", "x"]):
        outputs, _ = run(executor, kaas.KTask(kernels, names), x=ints(3), y=ints())
        assert list(outputs) == names
        assert (outputs["z"] == 3).all()
        assert (outputs["x"] == ints(4)).all()


def test_one_template_many_inputs(executor: Executor) -> None:
    task = kaas.KTask([kernel("increment", kaas.InOut(X), COUNT)], [X])
    key = task.key
    for start in (0, 100):
        assert (run(executor, task, x=ints(start))[0]["x"] == ints(start + 1)).all()
    assert task.key == key


def test_a_task_read_back_from_its_encodings_runs(executor: Executor) -> None:
    task = kaas.KTask([kernel("increment", kaas.InOut(X), COUNT)], [X], name="increment")
    for again in (kaas.KTask.from_dict(task.to_dict()), kaas.KTask.from_json(task.to_json())):
        assert (run(executor, again, x=ints())[0]["x"] == ints(1)).all()


def test_two_libraries_with_the_same_symbols_do_not_collide(executor: Executor) -> None:
    """Another client's kernel has the same name in a file of the same name: only the content counts."""
    swapped = re.sub(r"(\.entry )subtract\b", r"\1other", SOURCE.read_text())
    swapped = re.sub(r"(\.entry )increment\b", r"\1subtract", swapped)
    theirs = kaas.Library.from_ptx(swapped)
    ours = kaas.KTask([kernel("subtract", kaas.In(X), kaas.In(Y), kaas.Out(Z), COUNT)], [Z])
    other = kaas.KTask([kernel("subtract", kaas.InOut(X), COUNT, library=theirs)], [X])
    assert (run(executor, ours, x=ints(2), y=ints())[0]["z"] == 2).all()
    assert (run(executor, other, x=ints())[0]["x"] == ints(1)).all()
