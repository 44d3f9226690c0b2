"""Outputs on their way through the pool: values that turn into arrays only where they arrive."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kaas.futures import MakeResult
from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.request import outputs_type


class InlineOutput:
    """An output's bytes; pickles as an array of them, at less than half of what pickling an array costs in Ray."""

    __slots__ = ("_data", "_dtype", "_shape")

    def __init__(self, data: bytes, dtype: str, shape: tuple[int, ...]) -> None:
        self._data = data
        self._dtype = dtype
        self._shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return array_of, (self._data, self._dtype, self._shape)


class StoredOutput:
    """An output in Ray's store: its receiver gets the value itself, and the pool never touches it.

    The reference inside must be complete before this is handed out. get: `kaas.pool.on_ray.fetching.fetched`.
    """

    __slots__ = ("_get", "_ref")

    def __init__(self, get: Callable[[Any], Any], ref: Any) -> None:
        self._get = get
        self._ref = ref

    def __reduce__(self) -> tuple[Any, ...]:
        return self._get, (self._ref,)


class Packed:
    """A small value of any kind, packed by `kaas.wire.etask_values` and unpacked only where it arrives."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, (self._parts,)


def unpacked(parts: Sequence[bytes]) -> Any:
    """Return a value from its pickle and its arrays' buffers; the arrays are read-only."""
    return pickle.loads(parts[0], buffers=parts[1:])


def array_of(data: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the array of these bytes, read-only like every array from Ray."""
    return np.frombuffer(data, numpy_dtype(dtype)).reshape(shape)


def outputs_from(buffers: Sequence[Buffer]) -> MakeResult:
    """Return a function that makes frames, one for each output, the output's array, or a named tuple of several arrays.

    The arrays are views of the frames, and read-only as these are.
    """
    layouts = [(buffer.shape, numpy_dtype(buffer.dtype)) for buffer in buffers]
    if len(layouts) == 1:
        ((only_shape, only_dtype),) = layouts
        return lambda frames: np.ndarray(only_shape, only_dtype, frames[0])
    named = outputs_type(tuple(buffer.name for buffer in buffers))
    return lambda frames: named(*(np.ndarray(*layout, data) for data, layout in zip(frames, layouts, strict=True)))


@dataclass(frozen=True, slots=True)
class Lost:
    """The way to compute an output anew that was lost with its executor.

    Its inputs are kept for as long as a program can name the output.

    Fields:
        message, refs: the invocation, without outputs to keep. output: the position among so many outputs.
    """

    message: bytes
    refs: Sequence[Any] = field(repr=False)
    output: int
    outputs: int


class InputLost(Exception):
    """An input of a request is Lost. key: of the output, in the cache of the device that had it."""

    def __init__(self, key: bytes, lost: Lost) -> None:
        super().__init__("the executor that had it ended")
        self.key = key
        self.lost = lost
