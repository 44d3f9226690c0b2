"""A client finds only zeros in memory that is new to it: never another client's bytes and never poison."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kaas
from kaas.executor.executor import Executor, InputSource, RunRequest

SIZES = (40, 512, 1000, 3000)
KINDS = ("leave", "peek", "through")
CLIENTS = {"one": 0x11111111, "two": 0x22222222, "": 0x33333333}
"""Clients, with the mark that each leaves in all its memory."""
CACHE_BYTES = 74 << 10
HOST_BYTES = 24 << 10
WRITTEN = 5

Open = Callable[..., Executor]


@dataclass(frozen=True, slots=True)
class Step:
    """A request of a client, with memory of n elements.

    kind: `leave` fills the memory; `peek` returns an output of which only a part was written; `through` returns such a
    temporary. objects: numbers of the client's objects, which fill the cache.
    """

    client: str
    kind: str
    n: int
    part: int
    objects: tuple[int, ...]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    n = draw(st.sampled_from(SIZES))
    objects = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    return Step(
        draw(st.sampled_from(sorted(CLIENTS))), draw(st.sampled_from(KINDS)), n, draw(st.integers(0, n)), objects
    )


def task_of(library: kaas.Library, step: Step) -> kaas.KTask:
    """Return a kTask: out = the memory. It also reads the objects o0, o1."""
    n, mark = step.n, CLIENTS[step.client]
    out, between = kaas.Buffer("out", n, "int32"), kaas.Buffer("between", n, "int32")

    def launch(symbol: str, *args: Any) -> kaas.Kernel:
        return kaas.Kernel(library, symbol, -(-n // 128), 128, args)

    written = kaas.i32(n if step.kind == "leave" else step.part)
    value = kaas.i32(mark if step.kind == "leave" else WRITTEN)
    reads = []
    for index in range(len(step.objects)):
        read, sink = kaas.Buffer(f"o{index}", n, "int32"), kaas.Buffer(f"s{index}", n, "int32")
        reads.append(launch("scale", kaas.In(read), kaas.Out(sink), kaas.i32(1), kaas.i32(n)))
    if step.kind == "through":
        fill = launch("fill", kaas.Out(between), value, written)
        return kaas.KTask(
            [*reads, fill, launch("scale", kaas.In(between), kaas.Out(out), kaas.i32(1), kaas.i32(n))], [out]
        )
    return kaas.KTask([*reads, launch("fill", kaas.Out(out), value, written)], [out])


def run(executor: Executor, library: kaas.Library, step: Step) -> np.ndarray[Any, Any]:
    mark = CLIENTS[step.client]
    sources = {
        f"o{index}": InputSource(
            key=f"{step.client}-{step.n}-{number}".encode(), fetch=lambda: np.full(step.n, mark, np.int32)
        )
        for index, number in enumerate(step.objects)
    }
    result = executor.run(RunRequest(task_of(library, step), sources, {}, step.client))
    return result.outputs["out"]


def check(step: Step, before: Step | None, seen: np.ndarray[Any, Any]) -> None:
    """Check the memory that a step saw. `before` is the step that the executor ran last."""
    if step.kind == "leave":
        assert (seen == CLIENTS[step.client]).all()
        return
    assert (seen[: step.part] == WRITTEN).all()
    rest = set(seen[step.part :].tolist())
    own = {CLIENTS[step.client], WRITTEN} if before is not None and before.client == step.client else set()
    assert rest <= {0} | own, f"{step} found {sorted(map(hex, rest))} after {before}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 7), program=st.lists(steps(), min_size=2, max_size=12))
def test_no_client_finds_bytes_that_another_left(
    opened: Open, library: kaas.Library, seed: int, program: list[Step]
) -> None:
    executor = opened(seed, cache_bytes=CACHE_BYTES, host_cache_bytes=HOST_BYTES)
    before: Step | None = None
    for step in program:
        check(step, before, run(executor, library, step))
        before = step
    executor.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 7), programs=st.lists(st.lists(steps(), min_size=2, max_size=8), min_size=2, max_size=2))
def test_a_client_finds_no_bytes_that_another_leaves_in_parallel(
    opened: Open, library: kaas.Library, seed: int, programs: list[list[Step]]
) -> None:
    """Two slots, two threads. A request may get either slot, and so may find its client's own bytes."""
    executor = opened(seed, cache_bytes=2 * CACHE_BYTES, host_cache_bytes=HOST_BYTES, slots=2)

    def work(program: list[Step]) -> None:
        for step in program:
            check(step, step, run(executor, library, step))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, programs))
    executor.close()
