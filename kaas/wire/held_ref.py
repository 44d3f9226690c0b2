"""The reference to an object that a pool without Ray holds, in the program that put the object there."""

from __future__ import annotations

from typing import NoReturn

from kaas.errors import InvalidRequest
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import check_fit


class HeldRef:
    """The result of `kaas.put` without Ray: an input for any number of calls.

    The pool releases the object when the program has no reference to this any more."""

    __slots__ = ("__weakref__", "_key", "dtype", "nbytes", "shape")

    def __init__(self, key: bytes, nbytes: int, dtype: str | None, shape: tuple[int, ...] | None) -> None:
        """dtype, shape: None for plain bytes, which fit every buffer of their size."""
        self._key = key
        self.nbytes = nbytes
        self.dtype = dtype
        self.shape = shape

    def binary(self) -> bytes:
        """Return the object's key, a hash of its content."""
        return self._key

    def hex(self) -> str:
        return self._key.hex()

    def check_fit(self, buffer: Buffer, offset_bytes: int | None) -> None:
        """Check that the object fits a buffer.

        Raises:
            WrongDtype, WrongSize, WrongShape
        """
        check_fit(buffer, self.nbytes, self.dtype, offset_bytes, self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldRef) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "an object that a pool without Ray holds is known in this process only: put it in the other"
        )

    def __repr__(self) -> str:
        return f"<HeldRef {self.hex()}, {self.nbytes} bytes>"
