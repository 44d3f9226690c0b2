"""The code in the worker of an eTask of a server's configuration: it finds the operator's function by name."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kaas.api.etasks import ETask
from kaas.errors import InvalidConfig, InvalidRequest
from kaas.import_target import find_target
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import input_bytes


class NamedETask:
    """An instance of a class of the operator's, or a function; either may be decorated by `kaas.etask`."""

    def __init__(self, target: str, outputs: Sequence[tuple[str, str, tuple[int, ...]]]) -> None:
        """target: module:name. outputs: name, dtype, shape of each."""
        made: Any = find_target("function", target)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(made, ETask):
            made, args, kwargs = made.plain
        self._function: Any = made(*args, **kwargs) if inspect.isclass(made) else made
        self._outputs = [Buffer(name, shape, dtype) for name, dtype, shape in outputs]

    def __call__(self, inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Return the bytes of each output, in order. The function takes arrays by name. It returns the only output's
        array, or a mapping of all outputs' arrays.

        Raises:
            InvalidRequest: it returns anything else. Errors of the function are passed on.
        """
        found = self._function(**inputs)
        if len(self._outputs) == 1 and not isinstance(found, Mapping):
            found = {self._outputs[0].name: found}
        return [np.frombuffer(self._bytes(buffer, found), np.uint8) for buffer in self._outputs]

    def _bytes(self, buffer: Buffer, found: Mapping[str, Any]) -> memoryview:
        if buffer.name not in found:
            raise InvalidRequest(f"it gave no output {buffer.name!r}", buffer=buffer.name)
        value = found[buffer.name]
        if np.shape(value) != buffer.shape:
            message = f"output {buffer.name!r} has the shape {list(np.shape(value))}, not {list(buffer.shape)}"
            raise InvalidRequest(message, buffer=buffer.name)
        return input_bytes(buffer, np.ascontiguousarray(value))

    def close(self) -> None:
        """Close the operator's object before the process ends."""
        close = getattr(self._function, "close", None)
        if close is not None:
            close()


def find_all(targets: Mapping[str, str], path: Sequence[str]) -> None:
    """Look for the targets of eTasks, by the configuration's fields, in a process like their workers, but without a
    device. path: further places of modules.

    Raises:
        InvalidConfig: a target is missing.
    """
    sys.path += [entry for entry in path if entry not in sys.path]
    for field, target in targets.items():
        try:
            find_target(field, target)
        except InvalidConfig:
            raise
        except Exception:  # noqa: BLE001 - its module may need a device, which its worker has
            traceback.print_exc()
