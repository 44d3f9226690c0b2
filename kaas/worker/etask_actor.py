"""The Ray actor around one Python function or class that has a device to itself."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from kaas.config import Device
from kaas.errors import KaasError
from kaas.wire import specs
from kaas.wire.etask_values import AttachedArgument, packed, pickled
from kaas.wire.outputs import InputLost, unpacked
from kaas.wire.resident import Resident
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import WorkerPost
from kaas.worker.held.etask_constants import ETaskConstants

WATCH = "watch"
"""The concurrency group of `watch`; all other methods run on one thread, always the same."""


PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""A driver reads this variable at its start: that of a GPU where MPS's daemon runs, and the software GPU's."""
constants: ETaskConstants | None = None
"""Those of the eTask that runs in this process, if one does."""


class ETaskActor:
    """The worker of one client for one eTask. The first call loads the code and makes the instance."""

    def __init__(self, device: Device, code: bytes, path: Sequence[str], post: WorkerPost, sms: float = 1.0) -> None:
        """
        Args:
            code: (function or class, positional and keyword arguments to make the instance with), pickled.
            path: more folders of modules.
            post: of the worker.
            sms: the part of the device's SMs that kernels of this process may use.
        """
        self._device = device
        self._code = code
        self._path = path
        self._post = post
        self._sms = sms
        self._target: Any = None
        self._is_instance = False

    def start(self) -> WorkerInfo:
        """Make the device this process's only one.

        Raises:
            DeviceUnavailable
        """
        if self._sms < 1:
            os.environ[PERCENTAGE] = f"{100 * self._sms:g}"
        if self._device.kind == "software":
            from kaas.executor.device import software

            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            software.load(self._device)
        global constants
        constants = ETaskConstants(self._device, self._post)
        node = ray.get_runtime_context().get_node_id()
        return WorkerInfo(os.getpid(), node, "", self._device.memory_bytes or 0, (0, 0))

    @ray.method(concurrency_group=WATCH)
    def watch(self) -> None:
        """Never return: the call fails when the process ends, which tells the pool at once."""
        threading.Event().wait()

    def call(self, message: bytes, refs: Sequence[Any]) -> tuple[Any, bytes]:
        """Return the value if it is not small, and an encoded ETaskReply."""
        began = perf_counter()
        call = specs.decode_etask_call(message)
        value, parts, failure, load_s = None, list[bytes](), None, 0.0
        try:
            args, kwargs = _arguments(call, refs)
            load_s = self._load()
            value = (getattr(self._target, call.method) if call.method else self._target)(*args, **kwargs)
            parts = packed(value)
        except _ArgumentFailed as failed:
            failure = _failure(failed.error, by_input=True)
        except BaseException as error:  # noqa: BLE001 - any error of the function, SystemExit too, is the reply
            failure = _failure(error)
        reply = specs.ETaskReply(parts, perf_counter() - began, failure, load_s)
        return None if parts or failure else value, specs.encode(reply)

    def close(self) -> str:
        """Let the instance end in good order, by its own `close` if it has one; return the error, if any."""
        close = getattr(self._target, "close", None) if self._is_instance else None
        try:
            if close is not None:
                close()
        except BaseException as error:  # noqa: BLE001 - close may raise anything, too
            traceback.print_exc()
            return f"its close() raised {type(error).__name__}: {error}"
        return ""

    def _load(self) -> float:
        """Load the code and make the instance, unless they are there; return the seconds."""
        if self._target is not None:
            return 0.0
        began = perf_counter()
        sys.path += [entry for entry in self._path if entry not in sys.path]
        target, args, kwargs = cloudpickle.loads(self._code)
        self._is_instance = isinstance(target, type)
        self._target = target(*args, **kwargs) if self._is_instance else target
        return perf_counter() - began


class _ArgumentFailed(Exception):
    """An argument cannot be had. error: the cause."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _arguments(call: specs.ETaskCall, refs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call.

    Raises:
        _ArgumentFailed
    """
    args, kwargs = unpacked(call.arguments) if call.arguments else _value(refs[0])

    def resolved(value: Any) -> Any:
        return _value(refs[value.position]) if isinstance(value, AttachedArgument) else value

    return [resolved(value) for value in args], {name: resolved(value) for name, value in kwargs.items()}


def _value(ref: Any) -> Any:
    """Return an argument's value.

    Raises:
        _ArgumentFailed
    """
    try:
        value = ray.get(ref)
        return value.here() if isinstance(value, Resident) else value
    except RayTaskError as error:
        raise _ArgumentFailed(error.cause) from None
    except (RayError, KaasError, InputLost) as error:
        raise _ArgumentFailed(error) from None


def _failure(error: BaseException, by_input: bool = False) -> specs.ETaskFailure:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the traceback begins with the program's own code
    try:
        cause = pickled(error)
    except Exception:  # noqa: BLE001 - a foreign exception may hold anything; its message is sent in any case
        cause = b""
    return specs.ETaskFailure(
        message="".join(traceback.format_exception_only(error)).strip(),
        error_type=type(error).__name__,
        traceback="".join(traceback.format_exception(type(error), error, frames)),
        cause=cause,
        by_input=by_input,
    )
