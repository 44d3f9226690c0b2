"""Requests whose client's memory changes, which fences map and unmap: their time on an executor, by the caller's clock.

Each kind is of so many requests. Their kernels do little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import kaas
from benchmarks.isolation.patterns import BLOCK, CODE
from kaas.executor.executor import InputSource, RunRequest

READ = 1024
"""The elements of an object or a temporary that a kernel reads."""
TEMPORARY_BYTES, NEW_BYTES, SMALL_BYTES = 16 << 20, 4 << 20, 1 << 20
CACHE_BYTES = 64 << 20
"""Of the executor: less than the new objects have together, or the temporaries of all clients."""
CLIENTS = 8

Array = np.ndarray[Any, Any]


def temporaries_in_turns(count: int) -> Iterator[RunRequest]:
    """Yield requests of eight clients in turns, which each write a temporary of 16 MB."""
    n = TEMPORARY_BYTES // 4
    t, y = kaas.Buffer("t", n, "uint32"), kaas.Buffer("y", READ, "uint32")
    kernels = [
        kaas.Kernel(CODE, "numbers", n // BLOCK, BLOCK, [kaas.Out(t)]),
        kaas.Kernel(CODE, "copy", READ // BLOCK, BLOCK, [kaas.In(t), kaas.Out(y), kaas.u32(READ)]),
    ]
    task = kaas.KTask(kernels, [y])
    for number in range(count):
        yield RunRequest(task, {}, {}, f"client {number % CLIENTS}")


def new_objects(count: int) -> Iterator[RunRequest]:
    """Yield requests of one client that each bring an object of 4 MB, which stays in the cache."""
    task = reader(NEW_BYTES)
    for number in range(count):
        yield RunRequest(task, {"x": InputSource(_object(NEW_BYTES, number), key=b"%d" % number)}, {}, "client")


def objects_of_another(count: int) -> Iterator[RunRequest]:
    """Yield requests of two clients in turns that name one object of 1 MB."""
    task, value = reader(SMALL_BYTES), _object(SMALL_BYTES, 1)
    for number in range(count):
        yield RunRequest(task, {"x": InputSource(value, key=b"shared")}, {}, f"client {number % 2}")


def first_requests(count: int) -> Iterator[RunRequest]:
    """Yield the first requests of as many clients, of a kTask that others have run before."""
    task = reader(4 * READ)
    for number in range(count):
        yield RunRequest(task, {"x": InputSource(_object(4 * READ, number))}, {}, f"client {number}")


CHANGING: Mapping[str, Callable[[int], Iterator[RunRequest]]] = {
    made.__name__: made for made in (temporaries_in_turns, new_objects, objects_of_another, first_requests)
}


def reader(nbytes: int) -> kaas.KTask:
    """Return a kTask that copies the first elements of an input of so many bytes."""
    x, y = kaas.Buffer("x", nbytes // 4, "float32"), kaas.Buffer("y", READ, "float32")
    return kaas.KTask([kaas.Kernel(CODE, "copy", READ // BLOCK, BLOCK, [kaas.In(x), kaas.Out(y), kaas.u32(READ)])], [y])


def _object(nbytes: int, content: int) -> Array:
    return np.full(nbytes // 4, content, np.float32)
