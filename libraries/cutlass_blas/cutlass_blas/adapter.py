"""The launch of an instance and the bytes of its parameters, computed on the host by the kernel's own templates."""

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
    """The launch of an instance for one problem.

    Args:
        params: the kernel's only argument, a struct.
        shared_bytes: bytes of dynamic shared memory.
        a, b, c, d, alpha, beta: offsets of the pointers and the scalars in params, in bytes.
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


# as device/adapter.cuh has them
_REQUEST = struct.Struct("<14q16s16s")
_GRID = struct.Struct("<3q")
_PARAMS_AT = 176
_EXCHANGE_BYTES = _PARAMS_AT + 1024
_FACTS = struct.Struct("<12i")
_TOO_LARGE, _MISALIGNED = 1, 2


class _Exchange(threading.local):
    """The memory in which a thread passes a request to the adapter, and the adapter returns its reply."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_EXCHANGE_BYTES + 16)
        skip = -ctypes.addressof(self.memory) % 16
        self.address = ctypes.addressof(self.memory) + skip
        self.view = memoryview(self.memory).cast("B")[skip:]


_exchange = _Exchange()


class _Adapter(NamedTuple):
    """The parts that all launches of an instance share. `rest` has the fields of a Launch after its grid."""

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
    """Return the launch of an instance for a problem of m x n x k.

    `mode` is 0 for one product; 1 for split-K: `count` slices of k, each written to its own D, batch_strides[3] apart,
    and grid[2] is the number of these; 2 for a batch of `count` matrices at fixed strides; 3 for a batch by tables of
    pointers, with a table for C even if beta is 0.

    `batch_strides` and `leading` are those of A, B, C and D, in elements. A leading dimension of 0 for C repeats one
    row, as a bias does. `alpha` and `beta` are bytes of the accumulator's type.

    Raises:
        InvalidGraph: the sizes do not fit the instance's alignment, or are too large.
        MissingPackage, CompileFailed: the adapter is missing and cannot be built.
    """
    adapter = _adapter(instance.name)
    exchange = _exchange
    view = exchange.view
    _REQUEST.pack_into(view, 0, mode, m, n, k, count, *batch_strides, *leading, relu, alpha, beta)
    if refused := adapter.fill(exchange.address):
        raise _refusal(instance, refused, (m, n, k, count), leading, adapter.aligns)
    grid: Any = _GRID.unpack_from(view, _REQUEST.size)
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
    """Load a library. Its code stays until the process ends."""
    try:
        return ctypes.CDLL(path)
    except OSError as error:  # for example, the folder is mounted noexec, or the C library is another machine's
        raise StoreFailed(f"the BLAS library cannot load a built file: {error}", path=path) from error
