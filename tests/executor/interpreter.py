"""The meaning of a kTask in NumPy: its kernels run one after the other on whole arrays, in the simplest way.

It has the kernels of kernels/simple.cu, and checks an executor's outputs for any kTask made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kaas.ktask.arguments import Access, Argument, Buffer, Literal, Pointers, Scalar, Struct
from kaas.ktask.dtypes import decode, numpy_dtype
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel
from kaas.ktask.request import encode_scalars, iterations_of

Array = np.ndarray[Any, Any]

PACKED = struct.Struct("<QiiQb7x")
"""struct Packed: pointer a at 0, factor at 8, n at 12, pointer out at 16, tag at 24."""


def interpret(task: KTask, inputs: Mapping[str, Any], scalars: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """Return the outputs of a kTask for these inputs, which do not change."""
    encoded = encode_scalars(task, scalars)
    memory = {buffer: _initial(buffer, inputs) for buffer in task.buffers}
    for _ in range(iterations_of(task, encoded)):
        for kernel in task.kernels:
            KERNELS[kernel.symbol](kernel, *(_value(argument, memory, encoded) for argument in kernel.args))
    return {b.name: memory[b].view(numpy_dtype(b.dtype)).reshape(b.shape) for b in task.outputs}


def _initial(buffer: Buffer, inputs: Mapping[str, Any]) -> Array:
    if buffer.name in inputs:
        return np.frombuffer(bytes(memoryview(inputs[buffer.name]).cast("B")), np.uint8).copy()
    # A buffer without init="zero" has other bytes than zeros, so that a kernel that reads it unwritten is found.
    return np.full(buffer.nbytes, 0 if buffer.init == "zero" else 0xA5, np.uint8)


def _value(argument: Argument, memory: Mapping[Buffer, Array], scalars: Mapping[str, bytes]) -> Any:
    match argument:
        case Access():
            return memory[argument.buffer][argument.offset_bytes :]
        case Literal():
            return decode(argument.kind, argument.data)
        case Scalar():
            return decode(argument.kind, scalars[argument.name])
        case Pointers():
            return [_value(entry, memory, scalars) for entry in argument.entries]
        case Struct():
            blob = bytearray(argument.blob)
            for offset, scalar in argument.scalars:
                data = scalars[scalar.name]
                blob[offset : offset + len(data)] = data
            return bytes(blob), {offset: _value(target, memory, scalars) for offset, target in argument.pointers}


def _ints(memory: Array, n: int) -> Array:
    return memory[: 4 * n].view(np.int32)


def _threads(kernel: Kernel, n: int) -> int:
    return min(n, kernel.grid[0] * kernel.block[0])


def _add(kernel: Kernel, a: Array, b: Array, out: Array, n: int) -> None:
    n = _threads(kernel, n)
    _ints(out, n)[:] = _ints(a, n) + _ints(b, n)


def _scale(kernel: Kernel, a: Array, out: Array, factor: int, n: int) -> None:
    n = _threads(kernel, n)
    _ints(out, n)[:] = _ints(a, n) * np.int32(factor)


def _axpy(kernel: Kernel, a: int, x: Array, y: Array, n: int) -> None:
    n = _threads(kernel, n)
    _ints(y, n)[:] += np.int32(a) * _ints(x, n)


def _fill(kernel: Kernel, x: Array, value: int, n: int) -> None:
    _ints(x, _threads(kernel, n))[:] = value


def _affine(kernel: Kernel, a: Array, out: Array, alpha: float, beta: float, n: int) -> None:
    n = _threads(kernel, n)
    x = a[: 4 * n].view(np.float32).astype(np.float64)
    # nvcc contracts to fma, with one rounding; float64 has the same effect.
    out[: 4 * n].view(np.float32)[:] = (x * np.float32(alpha) + np.float64(np.float32(beta))).astype(np.float32)


def _packed(kernel: Kernel, parameter: tuple[bytes, dict[int, Array]]) -> None:
    blob, pointers = parameter
    _, factor, n, _, tag = PACKED.unpack(blob)
    n = _threads(kernel, n)
    _ints(pointers[16], n)[:] = _ints(pointers[0], n) * np.int32(factor) + np.int32(tag)


def _sum_of(kernel: Kernel, arrays: list[Array], count: int, out: Array, n: int) -> None:
    n = _threads(kernel, n)
    total = np.zeros(n, np.int32)
    for array in arrays[:count]:
        total += _ints(array, n)
    _ints(out, n)[:] = total


def _reverse(kernel: Kernel, a: Array, out: Array) -> None:
    n = kernel.grid[0] * kernel.block[0]
    _ints(out, n)[:] = _ints(a, n).reshape(kernel.grid[0], kernel.block[0])[:, ::-1].reshape(-1)


KERNELS: dict[str, Callable[..., None]] = {
    "add": _add,
    "scale": _scale,
    "axpy": _axpy,
    "fill": _fill,
    "affine": _affine,
    "packed": _packed,
    "sum_of": _sum_of,
    "reverse": _reverse,
}
