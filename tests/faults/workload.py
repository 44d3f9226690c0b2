"""Random requests with known results, and invariants of an executor between any two of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kaas
from kaas.errors import KaasError
from kaas.executor.cache.tiers import granules
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.plan.arena import GAP_BYTES
from softgpu import MEMCHECK_VARIABLE
from tests.executor.interpreter import interpret

SIZES = (64, 1000, 3000)
"""Elements of the buffers of a kTask."""
OBJECTS = 3
"""Objects of each size: so many that only a part of them fits."""
CACHE_BYTES = (76 << 10) + (4 * GAP_BYTES if os.environ.get(MEMCHECK_VARIABLE) == "1" else 0)
"""Under memcheck each buffer of an arena has a gap after it."""
HOST_BYTES = 48 << 10
WHOLE_BYTES = 16 << 10
BLOCK = 128

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A request with its expected outputs."""

    request: RunRequest
    expected: dict[str, Array]


def buffer(name: str, n: int, init: str | None = None) -> kaas.Buffer:
    return kaas.Buffer(name, n, "int32", init=init)


def tasks(library: kaas.Library, n: int) -> list[kaas.KTask]:
    """Return kTasks: one kernel, several, a written input, a table of pointers, iterations. Inputs: "a" and "b"."""
    a, b, c, t, u = (buffer(name, n) for name in "abctu")
    total, count = buffer("total", n, init="zero"), kaas.i32(n)

    def launch(symbol: str, *args: Any) -> kaas.Kernel:
        return kaas.Kernel(library, symbol, -(-n // BLOCK), BLOCK, args)

    chain = [
        launch("scale", kaas.In(a), kaas.Out(t), kaas.i32(2), count),
        launch("scale", kaas.In(b), kaas.Out(u), kaas.i32(-3), count),
        launch("add", kaas.In(t), kaas.In(u), kaas.Out(c), count),
    ]
    table = kaas.Pointers([kaas.In(a), kaas.In(b), kaas.In(a)])
    return [
        kaas.KTask([launch("add", kaas.In(a), kaas.In(b), kaas.Out(c), count)], [c]),
        kaas.KTask(chain, [c, t]),
        kaas.KTask([launch("axpy", kaas.i32(5), kaas.In(a), kaas.InOut(b), count)], [b]),
        kaas.KTask([launch("sum_of", table, kaas.i32(3), kaas.Out(c), count)], [c]),
        kaas.KTask([launch("axpy", kaas.i32(1), kaas.In(a), kaas.InOut(total), count)], [total], iterations=3),
    ]


def content(n: int, number: int) -> Array:
    return np.arange(number, number + n, dtype=np.int32) * (number + 1)


def cached(n: int, number: int) -> InputSource:
    """Return the source of an object, which is fetched if no tier has it."""
    return InputSource(key=b"object-%d-%d" % (n, number), fetch=lambda: content(n, number))


class Draw:
    """Random cases of one seed."""

    def __init__(self, library: kaas.Library, seed: int) -> None:
        self.random = random.Random(seed)
        self._tasks = {n: tasks(library, n) for n in SIZES}

    def case(self) -> Case:
        n = self.random.choice(SIZES)
        task = self.random.choice(self._tasks[n])
        arrays: dict[str, Array] = {}
        sources: dict[str, InputSource] = {}
        for needed in task.inputs:
            arrays[needed.name], sources[needed.name] = self._input(n)
        client = self.random.choice(["one", "two"])
        return Case(RunRequest(task, sources, {}, client), interpret(task, arrays))

    def _input(self, n: int) -> tuple[Array, InputSource]:
        """Return an input: by value, an object, or a view of a larger object that is cached by ranges."""
        number = self.random.randrange(OBJECTS)
        match self.random.randrange(4):
            case 0:
                return content(n, number), InputSource(content(n, number))
            case 1:
                whole, start = content(2 * max(SIZES), 7), self.random.randrange(0, max(SIZES), 128)
                source = InputSource(key=b"whole", fetch=lambda: whole, offset_bytes=4 * start)
                return whole[start : start + n], source
            case _:
                return content(n, number), cached(n, number)


def right(case: Case, run: Callable[[RunRequest], Any]) -> Any:
    """Run a case, which must succeed. Return its statistics."""
    result = run(case.request)
    assert list(result.outputs) == list(case.expected)
    for name, array in case.expected.items():
        np.testing.assert_array_equal(result.outputs[name], array, err_msg=name)
    return result.stats


def attempt(case: Case, run: Callable[[RunRequest], Any], *possible: type[KaasError]) -> KaasError | None:
    """Run a case that succeeds or ends with one of these errors. Return the error."""
    try:
        right(case, run)
    except possible as error:
        return error
    return None


class Accounting:
    """Compares the memory that an executor counts with the memory that it took from its pool since its start."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._pool = executor._memory._pool
        self._taken: dict[int, int] = {}
        self._allocate, self._free = self._pool.allocate, self._pool.free
        self._pool.__dict__.update(allocate=self._count, free=self._discount)

    def check(self) -> None:
        """Check that nothing is pinned, tiers are within bounds, and all memory is accounted for."""
        cache = self._executor.cache
        assert not cache.pinned
        assert not self._executor._memory.leases
        for tier in (cache.device, cache.host):
            assert tier.reserved_bytes == sum(map(granules, tier.sizes.values()))
            assert tier.values.keys() == tier.sizes.keys()
        assert cache.used_bytes <= CACHE_BYTES
        assert cache.host.reserved_bytes <= HOST_BYTES
        assert sum(self._taken.values()) == cache.used_bytes
        assert self._pool.used_bytes() >= cache.used_bytes  # its blocks may be larger than the requested sizes

    def _count(self, nbytes: int) -> int:
        address = self._allocate(nbytes)
        self._taken[address] = nbytes
        return address

    def _discount(self, address: int) -> None:
        del self._taken[address]
        self._free(address)
