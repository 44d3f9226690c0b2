"""The value of an output that stays on the device: a handle that fetches the array on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from kaas.errors import KaasError, NotInitialized, ResultLost
from kaas.wire.outputs import InputLost, Lost


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """An output that stays on the device (`keep=True`): the value of its ObjectRef.

    A kTask takes the ObjectRef, and finds the output on the device. Python code takes the array, with `get` or as an
    argument of a NumPy function.

    Fields:
        shape, dtype, nbytes: of the output. device: index of the device on which it was made.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    device: int
    key: bytes = field(repr=False)
    """The output's key in the device's cache."""
    _value: Any = field(repr=False)
    """Reference to the array, complete once a program has requested it, or to a Lost. It alone keeps both
    alive: the processes that can name an output are not counted."""
    _pool: Any = field(repr=False)

    def get(self) -> Any:
        """Return the array, read-only. The first call copies it to the host, and waits for that.

        If the executor that had the output has ended, the invocation runs again.

        Raises:
            ResultLost: the pool has ended, or the invocation failed this time; `__cause__` is its error.
        """
        value = self._array_or_lost()
        if not isinstance(value, Lost):
            return value
        try:
            invoke = self._pool.invoke.options(num_returns=value.outputs)
            made = invoke.remote(value.message, value.refs)
            return ray.get(made if value.outputs == 1 else made[value.output])
        except (RayError, KaasError) as error:
            raise self._result_lost(error) from error

    def here(self) -> Any:
        """Return the array, for an executor, which must not wait for another request.

        Raises:
            InputLost; ResultLost: the pool has ended.
        """
        value = self._array_or_lost()
        if isinstance(value, Lost):
            raise InputLost(self.key, value)
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        array = self.get()
        wanted = array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != array.dtype:
            raise ValueError(f"an array of {array.dtype} as one of {wanted} needs a copy")
        return array.astype(wanted, copy=bool(copy))

    def _array_or_lost(self) -> Any:
        if not ray.is_initialized():  # the call below would start one
            raise self._result_lost(NotInitialized("the Ray in which it was made has ended"))
        try:
            self._pool.wanted.remote(self.key)
            return ray.get(self._value)
        except Exception as error:  # for an actor of a Ray that has ended Ray has no class of errors
            raise self._result_lost(error) from error

    def _result_lost(self, error: Exception) -> ResultLost:
        reason = f"{type(error).__name__}: {error}"
        what = f"output of {self.dtype}{list(self.shape)} kept on device {self.device}"
        return ResultLost(f"{what} is gone: {reason}", device=self.device, reason=reason)
