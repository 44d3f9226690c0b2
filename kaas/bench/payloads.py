"""Inputs made from a function's own description, for callers that have no data at hand."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

from kaas.errors import InvalidRequest
from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import numpy_dtype

if TYPE_CHECKING:
    import numpy as np


UNREADABLE = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    BadZipFile,
    zlib.error,
    LZMAError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    TokenError,
)
"""Errors of NumPy, zipfile and json for files that are damaged, encrypted, too large, or of another form."""


def payload(inputs: Iterable[Buffer], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return an array for each input, by name, in the input's dtype and shape.

    Real numbers are between 0 and 1, and so are both parts of complex ones. Integers and booleans are 0 or 1, since
    many kernels take integers as indices.

    Args:
        inputs: buffers, as `kaas.KTask.inputs` has them.
        seed: other seeds give other values; the same one gives the same values.
    """
    import numpy as np

    random = np.random.default_rng(seed)

    def values(buffer: Buffer) -> np.ndarray[Any, Any]:
        dtype = numpy_dtype(buffer.dtype)
        if dtype.kind in "biu":
            return random.integers(0, 2, buffer.shape).astype(dtype)
        if dtype.kind == "c":
            return (random.random(buffer.shape) + 1j * random.random(buffer.shape)).astype(dtype)
        return random.random(buffer.shape, np.float32).astype(dtype)

    try:
        return {buffer.name: values(buffer) for buffer in inputs}
    except MemoryError as error:
        raise InvalidRequest(f"the inputs do not fit into this machine's memory: {error}") from error
    except ValueError as error:
        raise InvalidRequest(f"NumPy cannot make the inputs: {error}") from error


def from_file(file: Path, inputs: Iterable[Buffer] | None) -> dict[str, Any]:
    """Return the arrays of a file, by name: an .npz of NumPy, or a JSON object of nested lists.

    Args:
        file: the path.
        inputs: those that a caller may give; a list becomes an array of its input's dtype. None: the values of a step,
            by any name: arrays, or texts of JSON as bytes.

    Raises:
        InvalidRequest: the file is neither, or names something else than an input.
    """
    import numpy as np

    taken = {buffer.name: buffer for buffer in inputs or ()}
    try:
        if file.suffix == ".npz":
            if not is_zipfile(file):
                raise ValueError("it is no archive of arrays, as `numpy.savez` writes it")
            with np.load(file, allow_pickle=False) as opened:
                found = dict(opened)
        else:
            found = _json(file)
        if not isinstance(found, dict):
            raise ValueError("it is no object with a list for each input")
        if inputs is None:
            return {name: _of_step(name, value) for name, value in found.items()}
        unknown = [name for name in found if name not in taken]
        if unknown:
            raise ValueError(f"there is no input {unknown[0]!r}; there are {', '.join(taken) or 'none'}")
        return {name: _array(value, taken[name]) for name, value in found.items()}
    except UNREADABLE as error:
        raise InvalidRequest(f"{file} has no inputs: {error or type(error).__name__}") from error


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"it is neither an .npz nor JSON: {error}") from error


def _of_step(name: str, value: Any) -> Any:
    import numpy as np

    if not isinstance(value, np.ndarray | str):
        raise ValueError(f"value {name!r} of a step is a text in JSON, or an array in an .npz")
    return value.encode() if isinstance(value, str) else value


def _array(value: Any, buffer: Buffer) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype = numpy_dtype(buffer.dtype)
    if not isinstance(value, np.ndarray):
        return _of_lists(value, buffer)
    if value.dtype != dtype:
        raise ValueError(f"input {buffer.name!r} takes {buffer.dtype}, not {value.dtype}")
    return value


def _of_lists(value: Any, buffer: Buffer) -> np.ndarray[Any, Any]:
    """Return the array of nested lists, whose entries are of the dtype's kind: no 1.7 for an integer."""
    import numpy as np

    dtype = numpy_dtype(buffer.dtype)
    entries = {"b": bool, "i": int, "u": int}.get(dtype.kind, (int, float))
    for entry in np.array(value, object).flat:
        if not isinstance(entry, entries) or isinstance(entry, bool) != (dtype.kind == "b"):
            raise ValueError(f"input {buffer.name!r} takes {buffer.dtype}, and has an entry {entry!r:.40}")
    return np.array(value, dtype)
