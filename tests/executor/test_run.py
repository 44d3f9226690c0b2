"""A run on a device gives the outputs of the interpreter, whichever way the inputs take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from kaas.errors import OutOfDeviceMemory
from kaas.executor import executor as executor_module
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource, RunRequest, RunResult
from kaas.ktask.request import encode_scalars
from tests.executor.conftest import MakeExecutor, graphs_of
from tests.executor.interpreter import PACKED, interpret

N = 1000
GRID, BLOCK = 8, 128

Array = np.ndarray[Any, Any]


def buffer(name: str, init: str | None = None) -> kaas.Buffer:
    return kaas.Buffer(name, N, "int32", init=init)


A, B, C, D, E = map(buffer, "abcde")
COUNT = kaas.i32(N)


def ints(start: int, n: int = N) -> Array:
    return np.arange(start, start + n, dtype=np.int32)


def launch(library: kaas.Library, symbol: str, *args: Any, shared_bytes: int = 0) -> kaas.Kernel:
    return kaas.Kernel(library, symbol, GRID, BLOCK, args, shared_bytes)


def run(
    executor: Executor, task: kaas.KTask, inputs: dict[str, Any], scalars: dict[str, Any] | None = None
) -> RunResult:
    """Run a kTask twice, and compare both results with the interpreter's."""
    sources = {name: value if isinstance(value, InputSource) else InputSource(value) for name, value in inputs.items()}
    arrays = {name: value.value if isinstance(value, InputSource) else value for name, value in inputs.items()}
    expected = interpret(task, arrays, scalars)
    request = RunRequest(task, sources, encode_scalars(task, scalars))
    for result in (executor.run(request), executor.run(request)):
        assert list(result.outputs) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(result.outputs[name], array, err_msg=name)
    return result


def test_one_kernel(executor: Executor, library: kaas.Library) -> None:
    task = kaas.KTask([launch(library, "add", kaas.In(A), kaas.In(B), kaas.Out(C), COUNT)], [C])
    result = run(executor, task, {"a": ints(0), "b": ints(7)})
    array = result.outputs["c"]
    assert (array.shape, array.dtype, array.flags.writeable, array.flags.owndata or array.base is not None) == (
        (N,), np.dtype(np.int32), True, True)  # fmt: skip
    assert set(result.stats.stages) == {"plan", "fetch", "memory", "copy_in", "kernels", "copy_out", "total"}
    assert result.stats.device_s > 0
    assert result.stats.stages["total"] >= result.stats.device_s


def test_a_request_whose_error_comes_twice_leaves_its_slot_and_memory(
    make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is not the device's end may come from the wait for the request's work, too."""
    executor = make_executor(1 << 20)
    task = kaas.KTask([launch(library, "add", kaas.In(A), kaas.In(B), kaas.Out(C), COUNT)], [C])
    request = RunRequest(task, {"a": InputSource(ints(0)), "b": InputSource(ints(7))}, {})
    free = executor.run(request) and executor.cached_bytes

    def fail(*_: Any) -> None:
        raise OutOfDeviceMemory("the host has no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "synchronize", fail)
        patch.setattr(executor_module, "run_in_slot", fail)
        with pytest.raises(OutOfDeviceMemory):
            executor.run(request)
    np.testing.assert_array_equal(executor.run(request).outputs["c"], ints(0) + ints(7))
    assert executor.cached_bytes == free


def test_outputs_have_their_declared_order(executor: Executor, library: kaas.Library) -> None:
    kernels = [launch(library, "scale", kaas.In(A), kaas.Out(x), kaas.i32(k), COUNT) for k, x in enumerate((B, C, D))]
    result = run(executor, kaas.KTask(kernels, ["d", "b", "c"]), {"a": ints(5)})
    assert list(result.outputs) == ["d", "b", "c"]


def test_chain_and_diamond(executor: Executor, library: kaas.Library) -> None:
    diamond = kaas.KTask(
        [
            launch(library, "scale", kaas.In(A), kaas.Out(B), kaas.i32(2), COUNT),
            launch(library, "scale", kaas.In(B), kaas.Out(C), kaas.i32(3), COUNT),
            launch(library, "scale", kaas.In(B), kaas.Out(D), kaas.i32(5), COUNT),
            launch(library, "add", kaas.In(C), kaas.In(D), kaas.Out(E), COUNT),
        ],
        [E],
    )
    run(executor, diamond, {"a": ints(1)})


def test_an_input_that_is_written_stays_unchanged(executor: Executor, library: kaas.Library) -> None:
    task = kaas.KTask([launch(library, "axpy", kaas.i32(3), kaas.In(A), kaas.InOut(B), COUNT)], [B])
    a, b = ints(0), ints(100)
    inputs = {"a": InputSource(a, key=b"stays-a"), "b": InputSource(b, key=b"stays-b")}
    run(executor, task, inputs)
    run(executor, task, {"a": ints(0), "b": b})
    np.testing.assert_array_equal(b, ints(100))
    read = kaas.KTask([launch(library, "scale", kaas.In(B), kaas.Out(C), kaas.i32(1), COUNT)], [C])
    result = executor.run(RunRequest(read, {"b": InputSource(key=b"stays-b")}, {}))
    assert result.stats.hits == 1
    np.testing.assert_array_equal(result.outputs["c"], ints(100))


def test_zeroed_buffers_are_cleared_once_a_request(executor: Executor, library: kaas.Library) -> None:
    total = buffer("total", init="zero")
    task = kaas.KTask(
        [launch(library, "axpy", kaas.i32(1), kaas.In(A), kaas.InOut(total), COUNT)], [total], iterations=5
    )
    result = run(executor, task, {"a": ints(0)})
    np.testing.assert_array_equal(result.outputs["total"], 5 * ints(0))


def test_iterations_may_be_a_scalar(executor: Executor, library: kaas.Library) -> None:
    kernels = [
        launch(library, "axpy", kaas.i32(2), kaas.In(A), kaas.InOut(B), COUNT),
        launch(library, "add", kaas.In(A), kaas.In(B), kaas.Out(C), COUNT),
    ]
    task = kaas.KTask(kernels, [B, C], iterations=kaas.Scalar("rounds", "u16"))
    for rounds in (1, 7, 2):
        run(executor, task, {"a": ints(3), "b": ints(9)}, {"rounds": rounds})


def test_memory_that_one_iteration_leaves_for_the_next_is_not_reused(executor: Executor, library: kaas.Library) -> None:
    """a is read only at the beginning, and d is written only at the end: in one iteration they could share memory."""
    total = buffer("total", init="zero")
    kernels = [
        launch(library, "add", kaas.In(A), kaas.In(total), kaas.Out(B), COUNT),
        launch(library, "scale", kaas.In(B), kaas.Out(C), kaas.i32(3), COUNT),
        launch(library, "scale", kaas.In(C), kaas.Out(D), kaas.i32(5), COUNT),
        launch(library, "scale", kaas.In(D), kaas.Out(E), kaas.i32(7), COUNT),
    ]
    task = kaas.KTask(kernels, [E], iterations=3)
    run(executor, task, {"a": ints(4)})
    once, thrice = (executor.prepare(kaas.KTask(kernels, [E], n)).layout(1).nbytes for n in (1, 3))
    assert once < thrice or softgpu.checks_memory()  # under memcheck all buffers lie apart


def test_scalars_change_between_invocations(executor: Executor, library: kaas.Library) -> None:
    x = kaas.Buffer("x", N, "float32")
    y = kaas.Buffer("y", N, "float32")
    args = [kaas.In(x), kaas.Out(y), kaas.Scalar("alpha", "f32"), kaas.Scalar("beta", "f64"), COUNT]
    task = kaas.KTask([launch(library, "affine", *args)], [y])
    for alpha, beta in ((1.5, 2.0), (-3.0, 0.25), (1.5, 0.25)):
        run(executor, task, {"x": np.arange(N, dtype=np.float32)}, {"alpha": alpha, "beta": beta})


def test_offsets(executor: Executor, library: kaas.Library) -> None:
    half = N // 2
    task = kaas.KTask(
        [
            launch(library, "scale", kaas.In(A, 4), kaas.InOut(B, 4 * half), kaas.i32(-1), kaas.i32(half)),
            launch(library, "add", kaas.In(A), kaas.In(B, 8), kaas.InOut(C, 12), kaas.i32(100)),
        ],
        [B, C],
    )
    run(executor, task, {"a": ints(0), "b": ints(1000), "c": ints(5000)})


def test_structs(executor: Executor, library: kaas.Library) -> None:
    struct = kaas.Struct(
        PACKED.pack(0, 0, N, 0, 7), {0: kaas.In(A), 16: kaas.Out(B)}, {8: kaas.Scalar("factor", "i32")}, align=8
    )
    task = kaas.KTask([launch(library, "packed", struct)], [B])
    for factor in (3, -4):
        run(executor, task, {"a": ints(0)}, {"factor": factor})


def test_tables_of_pointers(executor: Executor, library: kaas.Library) -> None:
    table = kaas.Pointers([kaas.In(A), kaas.In(B, 40), kaas.In(C), kaas.In(A)])
    args = [table, kaas.i32(4), kaas.Out(D), kaas.i32(N - 10)]
    task = kaas.KTask([launch(library, "scale", kaas.In(A), kaas.Out(C), kaas.i32(2), COUNT),
                       launch(library, "sum_of", *args[:2], kaas.InOut(D), args[3])], [D])  # fmt: skip
    big = kaas.Buffer("big", 1 << 16, "int32")
    other = kaas.KTask([kaas.Kernel(library, "fill", 256, 256, [kaas.Out(big), kaas.i32(0), kaas.i32(1 << 16)])], [big])
    for start in (0, 50):
        inputs = {"a": ints(start), "b": InputSource(ints(start + 1), key=b"table-%d" % start), "d": ints(0)}
        run(executor, task, inputs)
        run(executor, other, {})  # overwrites the place of the table
        run(executor, task, inputs)


def test_dynamic_shared_memory(executor: Executor, library: kaas.Library) -> None:
    x, y = kaas.Buffer("x", 1024, "int32"), kaas.Buffer("y", 1024, "int32")
    for block in (64, 256):
        kernel = kaas.Kernel(
            library, "reverse", 1024 // block, block, [kaas.In(x), kaas.Out(y)], shared_bytes=4 * block
        )
        run(executor, kaas.KTask([kernel], [y]), {"x": ints(0, 1024)})
    roomy = kaas.Kernel(library, "reverse", 4, 256, [kaas.In(x), kaas.Out(y)], shared_bytes=100 << 10)
    run(executor, kaas.KTask([roomy], [y]), {"x": ints(0, 1024)})


def test_more_than_one_dimension_and_other_dtypes(executor: Executor, library: kaas.Library) -> None:
    raw = kaas.Buffer("raw", 4 * 12)  # uint8 takes any dtype
    image = kaas.Buffer("image", (3, 4), "int32")
    task = kaas.KTask([launch(library, "scale", kaas.In(raw), kaas.Out(image), kaas.i32(2), kaas.i32(12))], [image])
    result = executor.run(RunRequest(task, {"raw": InputSource(ints(0, 12))}, {}))
    np.testing.assert_array_equal(result.outputs["image"], 2 * ints(0, 12).reshape(3, 4))
    frozen = ints(0, 12)
    frozen.flags.writeable = False  # as all arrays of Ray's store
    by_key = executor.run(RunRequest(task, {"raw": InputSource(frozen, key=b"frozen")}, {}))
    np.testing.assert_array_equal(by_key.outputs["image"], result.outputs["image"])
    half = kaas.Buffer("half", (2, 12), "bfloat16")
    task = kaas.KTask([launch(library, "scale", kaas.In(raw), kaas.Out(half), kaas.i32(1), kaas.i32(12))], [half])
    result = executor.run(RunRequest(task, {"raw": InputSource(ints(0, 12).tobytes())}, {}))
    assert (str(result.outputs["half"].dtype), result.outputs["half"].shape) == ("bfloat16", (2, 12))
    assert result.outputs["half"].tobytes() == ints(0, 12).tobytes()


def test_empty_buffers(executor: Executor, library: kaas.Library) -> None:
    none, nothing = kaas.Buffer("none", 0, "int32"), kaas.Buffer("nothing", (2, 0), "int32")
    task = kaas.KTask([launch(library, "scale", kaas.In(none), kaas.Out(nothing), kaas.i32(2), kaas.i32(0))], [nothing])
    result = executor.run(RunRequest(task, {"none": InputSource(np.empty(0, np.int32))}, {}))
    assert result.outputs["nothing"].shape == (2, 0)


def test_many_shapes_of_requests_need_two_instances_at_most(executor: Executor, library: kaas.Library) -> None:
    task = kaas.KTask([launch(library, "add", kaas.In(A), kaas.In(B), kaas.Out(C), COUNT)], [C], name="instances")
    for k in range(8):
        run(executor, task, {"a": InputSource(ints(k), key=b"instance-%d" % k), "b": ints(k)})
        run(executor, task, {"a": ints(k), "b": InputSource(ints(k), key=b"instance-%d" % k)})
    assert len(graphs_of(executor, task)._chains[1, None]._instances) == 2


@pytest.mark.parametrize("client", ["second", ""])
def test_a_client_finds_nothing_of_another(executor: Executor, library: kaas.Library, client: str) -> None:
    leave = kaas.KTask([launch(library, "fill", kaas.Out(A), kaas.i32(-1), COUNT)], [A])
    executor.run(RunRequest(leave, {}, {}, "first"))
    # The kernel declares that it writes all and writes one element: the rest of its output is the memory's old content.
    peek = kaas.KTask([launch(library, "fill", kaas.Out(A), kaas.i32(5), kaas.i32(1))], [A])
    seen = executor.run(RunRequest(peek, {}, {}, client)).outputs["a"]
    np.testing.assert_array_equal(seen, [5] + [0] * (N - 1))


def test_plans_are_bounded_and_libraries_leave_with_their_last_plan(
    make_executor: Callable[[int], Executor], library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaas.executor.plan.graph_cache.MAX_PLANS", 2)
    executor = make_executor(1 << 20)
    text = library.images[0].data.decode()
    for number in range(4):
        own = kaas.Library.from_ptx(f"{text}\n// {number}\n")
        task = kaas.KTask([launch(own, "add", kaas.In(A), kaas.In(B), kaas.Out(C), COUNT)], [C])
        run(executor, task, {"a": ints(number), "b": ints(7)})
        assert sum(len(slot.plans.kernels) for slot in executor._slots) == min(number + 1, 2)
