"""Random kTasks on the software GPU against the interpreter, through plan, arena, cache and graph."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kaas
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest, RunResult
from kaas.executor.plan.arena import GAP_BYTES
from kaas.ktask.request import encode_scalars
from softgpu import MEMCHECK_VARIABLE, set_strict
from tests.executor.interpreter import PACKED, interpret

INT = 4
SIZES = (16, 16, 16, 40)
"""Elements of the buffers: few, and mostly the same, so that kernels write whole buffers and memory is reused."""

Draw = st.DrawFn


@st.composite
def buffers(draw: Draw) -> list[kaas.Buffer]:
    count = draw(st.integers(2, 7))
    return [
        kaas.Buffer(f"b{i}", draw(st.sampled_from(SIZES)), "int32", init=draw(st.sampled_from([None, None, "zero"])))
        for i in range(count)
    ]


@st.composite
def tasks(draw: Draw, library: kaas.Library) -> kaas.KTask:
    pool = draw(buffers())
    kernels = [draw(kernel(library, pool)) for _ in range(draw(st.integers(1, 8)))]
    written = list(dict.fromkeys(buffer for k in kernels for buffer in k.writes))
    outputs = draw(st.lists(st.sampled_from(written), min_size=1, max_size=3, unique=True))
    rounds: list[int | kaas.Scalar] = [1, 1, 2, 3, kaas.Scalar("rounds", "u8")]
    return kaas.KTask(kernels, outputs, draw(st.sampled_from(rounds)))


@st.composite
def kernel(draw: Draw, library: kaas.Library, pool: list[kaas.Buffer]) -> kaas.Kernel:
    symbol = draw(st.sampled_from(["add", "scale", "axpy", "fill", "packed", "sum_of", "reverse"]))
    target, at = draw(places(pool))
    target_n = target.shape[0] - at // INT
    sources = [s for s in draw(st.lists(places(pool), min_size=2, max_size=3)) if s[0] != target]
    n = min([target_n, *(s[0].shape[0] - s[1] // INT for s in sources)])
    ins = [kaas.In(*s) for s in sources]
    whole = at == 0 and n == target.shape[0]
    out = (kaas.Out if whole else kaas.InOut)(target, at)
    size = draw(st.sampled_from([8, 32]))
    launch = (-(-n // size), size)
    count = draw(count_arguments(n))
    factor = draw(factors())
    if not ins or symbol == "fill":
        return kaas.Kernel(library, "fill", *launch, [out, factor, count])
    match symbol:
        case "add":
            args: list[Any] = [ins[0], ins[-1], out, count]
        case "scale":
            args = [ins[0], out, factor, count]
        case "axpy":
            args = [factor, ins[0], kaas.InOut(target, at), count]
        case "packed":
            scalar = draw(st.booleans())
            blob = PACKED.pack(0, draw(st.integers(-9, 9)), n, 0, draw(st.integers(-9, 9)))
            args = [
                kaas.Struct(blob, {0: ins[0], 16: out}, {8: kaas.Scalar("factor", "i32")} if scalar else {}, align=8)
            ]
        case "sum_of":
            args = [kaas.Pointers(ins), kaas.i32(len(ins)), out, count]
        case _:  # reverse: whole blocks only
            out = (kaas.Out if at == 0 and target.shape[0] == n // 8 * 8 else kaas.InOut)(target, at)
            return kaas.Kernel(library, symbol, n // 8, 8, [ins[0], out], shared_bytes=32) if n >= 8 else kaas.Kernel(
                library, "fill", *launch, [kaas.InOut(target, at), factor, count])  # fmt: skip
    return kaas.Kernel(library, symbol, *launch, args)


@st.composite
def places(draw: Draw, pool: list[kaas.Buffer]) -> tuple[kaas.Buffer, int]:
    return draw(st.sampled_from(pool)), draw(st.sampled_from([0, 0, 0, 0, 4, 32]))


def factors() -> st.SearchStrategy[kaas.Literal | kaas.Scalar]:
    return st.one_of(st.integers(-(2**31), 2**31 - 1).map(kaas.i32), st.just(kaas.Scalar("factor", "i32")))


def count_arguments(n: int) -> st.SearchStrategy[kaas.Literal]:
    return st.just(kaas.i32(n))


def sources(inputs: dict[str, np.ndarray[Any, Any]], cached: set[str], joined: bool) -> dict[str, InputSource]:
    """Return the inputs by value, and those in `cached` by keys: one each, or all as views of one object."""
    whole = np.concatenate([inputs[name] for name in sorted(cached)]) if cached else np.empty(0, np.int32)
    offset = 0
    given: dict[str, InputSource] = {}
    for name in sorted(inputs):
        if name not in cached:
            given[name] = InputSource(inputs[name])
        elif joined:
            given[name] = InputSource(key=b"joined" + whole.tobytes(), fetch=lambda: whole, offset_bytes=offset)
            offset += inputs[name].nbytes
        else:
            given[name] = InputSource(key=name.encode() + inputs[name].tobytes(), fetch=partial(inputs.get, name))
    return given


@st.composite
def requests(draw: Draw, task: kaas.KTask, numbers: np.random.Generator) -> tuple[RunRequest, dict[str, Any]]:
    """Return a request and its expected outputs."""
    inputs = {b.name: numbers.integers(-1000, 1000, b.shape, np.int32) for b in task.inputs}
    values = {"factor": draw(st.integers(-99, 99)), "rounds": draw(st.sampled_from([1, 2, 3, 4, 18, 65]))}
    scalars = {name: values[name] for name in task.scalars}
    cached = draw(st.sets(st.sampled_from(sorted(inputs)))) if inputs else set()
    given_inputs = sources(inputs, cached, draw(st.booleans()))
    client = draw(st.sampled_from(["one", "two"]))
    return RunRequest(task, given_inputs, encode_scalars(task, scalars), client), interpret(task, inputs, scalars)


def check(result: RunResult, expected: dict[str, Any], when: str) -> None:
    assert list(result.outputs) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(result.outputs[name], array, err_msg=f"{name}, {when}")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_like_the_interpreter(executor: Executor, library: kaas.Library, data: st.DataObject) -> None:
    task = data.draw(tasks(library))
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(3):  # the first makes the plan, the others replay it with other objects and scalars
        request, expected = data.draw(requests(task, numbers))
        check(executor.run(request), expected, "the first time")
        again = executor.run(request)
        check(again, expected, "the second time")
        assert again.stats.misses == 0


CROWDED_BYTES = (12 << 10) + (16 * GAP_BYTES if os.environ.get(MEMCHECK_VARIABLE) == "1" else 0)
"""Under memcheck each buffer has a gap after it, and memory of its own."""


@pytest.fixture(scope="module")
def crowded(softgpu: tuple[int, ...]) -> Iterator[Executor]:  # noqa: ARG001
    """Return an executor whose three slots share memory for little more than one of the largest requests."""
    made = Executor(
        open_device("software", 1), slots=3, cache_bytes=CROWDED_BYTES, host_cache_bytes=4 << 10, whole_object_bytes=128
    )
    yield made
    made.close()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), strict=st.one_of(st.none(), st.integers(0, 2**32)))
def test_side_by_side(crowded: Executor, library: kaas.Library, data: st.DataObject, strict: int | None) -> None:
    numbers = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = [data.draw(tasks(library)) for _ in range(3)]
    drawn = [data.draw(requests(task, numbers)) for task in kinds + kinds[:1]]
    order = data.draw(st.permutations(drawn * 2))
    set_strict(strict)
    try:
        with ThreadPoolExecutor(4) as threads:
            for result, (_, expected) in zip(threads.map(crowded.run, [r for r, _ in order]), order, strict=True):
                check(result, expected, "side by side")
    finally:
        set_strict(None)
    cache, memory = crowded.cache, crowded._memory
    assert (cache.pinned, memory.leases, memory._inflight.among(cache.sizes)) == (frozenset(), 0, [])
    assert memory._pool.used_bytes() == cache.used_bytes <= CROWDED_BYTES
    assert cache.host.reserved_bytes + memory.buffers.idle_bytes <= 4 << 10
