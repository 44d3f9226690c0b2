"""The launch of an instance and the bytes of its parameters, computed on the host from the same templates."""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache, lru_cache
from typing import Any, NamedTuple

from cutlass_blas import store
from cutlass_blas.errors import StoreFailed
from cutlass_blas.instances import Instance, parse
from kaas import errors


class Launch(NamedTuple):
    """How an instance is launched for one problem.

    Args:
        params: its only argument, a struct.
        shared_bytes: of dynamic shared memory.
        a, b, c, d, alpha, beta: where in params the pointers and the scalars stand, in bytes.
    """

    params: bytes
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int
    a: int
    b: int
    c: int
    d: int
    alpha: int
    beta: int


# both as device/adapter.cuh has them
_QUESTION = struct.Struct("<14q16s16s")
_GRID = struct.Struct("<3q")
_PARAMS_AT = 176
_EXCHANGE_BYTES = _PARAMS_AT + 1024
_FACTS = struct.Struct("<12i")
_TOO_LARGE, _MISALIGNED = 1, 2


class _Exchange(threading.local):
    """Where a thread and the adapter hand each other questions and answers."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_EXCHANGE_BYTES + 16)
        skip = -ctypes.addressof(self.memory) % 16
        self.address = ctypes.addressof(self.memory) + skip
        self.view = memoryview(self.memory).cast("B")[skip:]


_exchange = _Exchange()


class _Adapter(NamedTuple):
    """What does not change from launch to launch of an instance. `rest` is that of a Launch behind its grid."""

    fill: Any
    end: int
    rest: tuple[int, int, int, int, int, int, int, int]
    aligns: tuple[int, ...]


def launch(
    instance: Instance,
    mode: int,
    m: int,
    n: int,
    k: int,
    count: int,
    batch_strides: tuple[int, int, int, int],
    leading: tuple[int, int, int, int],
    alpha: bytes,
    beta: bytes,
    relu: bool,
) -> Launch:
    """
    Args:
        mode: 0 one product; 1 split-K: `count` slices of k, each written to its own D, batch_strides[3] apart, of which
            there are grid[2]; 2 a batch of matrices at fixed strides; 3 a batch given by tables of pointers, C's
            among them even where beta is 0.
        batch_strides, leading: of A, B, C, D, in elements. 0 for C repeats one row, as a bias does.
        alpha, beta: of the accumulator's type.

    Raises:
        InvalidGraph: sizes that do not fit the instance's alignment, or too large for it.
        MissingPackage, CompileFailed: the adapter is not there and cannot be built.
    """
    adapter = _adapter(instance.name)
    exchange = _exchange
    view = exchange.view
    _QUESTION.pack_into(view, 0, mode, m, n, k, count, *batch_strides, *leading, relu, alpha, beta)
    if refused := adapter.fill(exchange.address):
        raise _refusal(instance, refused, (m, n, k, count), leading, adapter.aligns)
    grid: Any = _GRID.unpack_from(view, _QUESTION.size)
    return Launch(bytes(view[_PARAMS_AT : adapter.end]), grid, *adapter.rest)


def _refusal(
    instance: Instance, refused: int, sizes: tuple[int, ...], leading: tuple[int, ...], aligns: tuple[int, ...]
) -> errors.InvalidGraph:
    if refused == _MISALIGNED:
        return errors.InvalidGraph(
            f"{instance.name} loads {aligns[0]} elements of A, {aligns[1]} of B and stores {aligns[2]} of C at once: "
            f"sizes {sizes[:3]} and leading dimensions {leading} are not multiples of these"
        )
    return errors.InvalidGraph(f"m, n, k, count = {sizes} is more than {instance.name} can be launched for")


@lru_cache(maxsize=1024)
def _adapter(name: str) -> _Adapter:
    library = _loaded(str(store.adapter(parse(name))))
    facts, fill = getattr(library, f"{name}_facts"), getattr(library, f"{name}_fill")
    facts.argtypes = fill.argtypes = (ctypes.c_void_p,)
    facts.restype, fill.restype = None, ctypes.c_int
    facts(_exchange.address)
    params_bytes, *more = _FACTS.unpack_from(_exchange.view)
    rest: Any = tuple(more[:-3])
    return _Adapter(fill, _PARAMS_AT + params_bytes, rest, tuple(more[-3:]))


@cache
def _loaded(path: str) -> ctypes.CDLL:
    """A library's code stays for the life of the process."""
    try:
        return ctypes.CDLL(path)
    except OSError as error:  # a folder whose files cannot be executed, or another machine's C library
        raise StoreFailed(f"the BLAS library cannot load what it has built: {error}", path=path) from error
