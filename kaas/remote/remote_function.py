"""Functions and objects at a server, as its client sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kaas.arguments import Buffer
from kaas.dtypes import numpy_dtype
from kaas.errors import InvalidRequest
from kaas.executor.tensors import on_host
from kaas.pool.held_ref import HeldRef
from kaas.pool.packing import Packing
from kaas.remote import wire
from kaas.request import check_taken, encode_kinds, input_bytes, outputs_type
from kaas.variant import by_position, choose, of_shapes

if TYPE_CHECKING:
    from kaas.futures import Future

Make = Callable[[Sequence[Any]], Any]


class RemoteObject(HeldRef):
    """A value at the server, under a name that its client gave it: an input for any number of calls."""

    __slots__ = ("name", "shape")

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        buffer = Buffer(name, shape, dtype)
        super().__init__(name.encode(), buffer.nbytes, dtype)
        self.name, self.shape = name, shape

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteObject, (self.name, self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<RemoteObject {self.name!r}, {self.dtype}{list(self.shape)}>"
