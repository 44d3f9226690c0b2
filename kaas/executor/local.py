"""kTasks in this process, without Ray: `kaas.run_local`, and the check of `kaas check`."""

from __future__ import annotations

import _thread
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import structs

from kaas.config import SOFTWARE_GPU_BYTES, SOFTWARE_GPUS, Device
from kaas.errors import DeviceLost, DeviceUnavailable, InvalidRequest
from kaas.executor.device import software
from kaas.ktask.graph import KTask
from kaas.ktask.request import View, check_names, encode_scalars, mapping

if TYPE_CHECKING:
    import numpy as np

    from kaas.executor.executor import Executor, RunRequest, RunResult
    from kaas.executor.inputs import InputSource
    from kaas.executor.plan.plan import Plan
    from kaas.executor.profile import KernelTime

GRACE_S = 1.0
"""Seconds after Ctrl-C in which a request may still end by itself. Then the device stays usable."""
LOST_SIGNAL_S = 0.5
"""Python misses a signal that comes just before a thread sleeps in a lock, until the thread wakes; here after this."""

T = TypeVar("T")

_lock = threading.Lock()
_executors: dict[tuple[str, int, int | None], Executor] = {}


def run_local(
    task: KTask,
    inputs: Mapping[str, Any] | None = None,
    *,
    scalars: Mapping[str, Any] | None = None,
    device: Device | int | None = None,
    profile: Callable[[tuple[KernelTime, ...]], object] | None = None,
    limit_s: float | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Run a kTask in this process and return its outputs, in the order in which it lists them.

    Args:
        task: the kTask.
        inputs: by buffer name: arrays of NumPy or of any library with DLPack, objects with the buffer protocol, or
            Views of these.
        scalars: by name.
        device: None is the first GPU or, without one, a software GPU; an int is the number of a device of that kind; a
            kaas.Device names the kind and the memory to use.
        profile: a function that gets the time of each kernel: symbol, index, seconds, launches. The kernels then run
            one by one, without the graph. `profile=print` works.
        limit_s: kernels that run longer are ended, on the software GPU only. This process cannot use the device after
            that, as after every error that sticks to a device.

    Ctrl-C ends the call. Kernels of the software GPU that run for a second more are ended as by limit_s; kernels of a
    GPU run on.

    The text that kernels print goes to this process's stdout.

    Returns:
        The outputs by buffer name: arrays of the buffers' dtypes and shapes, in memory of their own, which the caller
        may change.

    Raises:
        KaasError: any error of the kTask, the request or the device.
    """
    result = run(task, inputs, scalars=scalars, device=device, profile=profile is not None, limit_s=limit_s)
    if profile is not None:
        profile(result.stats.kernels)
    return result.outputs


def run(
    task: KTask,
    inputs: Mapping[str, Any] | None = None,
    *,
    scalars: Mapping[str, Any] | None = None,
    device: Device | int | None = None,
    profile: bool = False,
    limit_s: float | None = None,
) -> RunResult:
    """Run a kTask as run_local does. The result also has the times of the stages and, with profile, of the kernels."""
    from kaas.executor.executor import RunRequest

    if not isinstance(task, KTask):
        raise InvalidRequest(f"run_local takes a kaas.KTask, not {task!r}")
    if limit_s is not None and not (isinstance(limit_s, int | float) and limit_s > 0):
        raise InvalidRequest(f"limit_s is a positive number of seconds, not {limit_s!r}", task=task.label)
    given = mapping(task, "inputs", inputs)
    check_names(task, given)
    encoded = encode_scalars(task, scalars)
    sources = {name: source_of(value) for name, value in given.items()}
    executor = executor_for(device)
    if executor.lost is not None:
        message = f"an earlier kTask lost the device of this process; start a new process. {executor.lost.message}"
        raise DeviceLost(message, **executor.lost.fields)
    return interruptible(executor, RunRequest(task, sources, encoded, profile=profile, limit_s=limit_s))


def interruptible(executor: Executor, request: RunRequest) -> RunResult:
    """Run a request in a thread of its own, so that Ctrl-C ends it.

    Python raises KeyboardInterrupt in the main thread, and only between two steps of Python. A main thread that waited
    for the device itself would get it too late.

    Raises:
        KaasError, KeyboardInterrupt
    """
    if threading.current_thread() is not threading.main_thread():
        return executor.run(request)
    inputs = {name: _at_rest(executor, name, source) for name, source in request.inputs.items()}
    request = structs.replace(request, inputs=inputs)
    running = InThread(lambda: executor.run(request))
    try:
        running.start()
        running.wait()
    except KeyboardInterrupt:
        try:
            running.wait(GRACE_S)
        finally:  # also of a second Ctrl-C meanwhile
            if not running.ended and executor.interrupt(request.task.label):
                running.wait()
        raise
    return running.result()


class InThread(Generic[T]):
    """A function in a thread of its own, for a main thread that Ctrl-C may interrupt at any step.

    An interrupt within a Future, an Event or the start of a Thread may leave their own locks locked; here is only one
    lock, and the one that waits for it is the one that may be interrupted.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self.ended = False
        self._function = function
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._end = threading.Lock()
        self._end.acquire()

    def start(self) -> None:
        """Call the function. A Thread would wait, in an Event, until its thread has begun."""
        _thread.start_new_thread(self._run, ())

    def wait(self, limit_s: float = math.inf) -> None:
        """Wait until the function has ended, or for limit_s seconds."""
        ends_s = monotonic() + limit_s
        while not self.ended and (left_s := ends_s - monotonic()) > 0:
            self._end.acquire(timeout=min(left_s, LOST_SIGNAL_S))

    def result(self) -> T:
        """Return what the function returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._values[0]

    def _run(self) -> None:
        try:
            self._values.append(self._function())
        except BaseException as error:  # noqa: BLE001 - result raises it
            self._error = error
        self.ended = True
        self._end.release()


def _at_rest(executor: Executor, name: str, source: InputSource) -> InputSource:
    """Return the source of an input that another thread may read.

    Libraries have a current stream for each thread: only this thread's makes the array.
    """
    from kaas.executor.device.host_arrays import at_rest

    value = at_rest(name, source.value, executor.device)
    return source if value is source.value else structs.replace(source, value=value)


def check(task: KTask, device: Device | int | None = None) -> Plan:
    """Check a kTask against its code and a device (as in run_local) without running it.

    Raises:
        CorruptImage, UnsupportedCode, Unprovided, UnknownSymbol, ArgumentMismatch, LaunchLimit, RequestTooLarge,
        DeviceUnavailable
    """
    from kaas.executor.plan.plan import check_size, largest_object_bytes

    executor = executor_for(device)
    plan = executor.prepare(task)
    check_size(plan, executor.cache.device.capacity_bytes, executor.device.info().name, largest_object_bytes(plan))
    return plan


def executor_for(device: Device | int | None = None) -> Executor:
    """Return this process's executor for a device, which is opened once."""
    from kaas.executor.device.device import gpu_count, open_device
    from kaas.executor.executor import Executor

    with _lock:
        if isinstance(device, Device):
            kind, ordinal, memory_bytes = device.kind, 0, device.memory_bytes
        elif device is None or isinstance(device, int):
            kind, ordinal, memory_bytes = ("gpu" if gpu_count() else "software"), device or 0, None
        else:
            raise DeviceUnavailable(f"a device is a kaas.Device, a number or None, not {device!r}")
        key = (kind, ordinal, memory_bytes)
        if key not in _executors:
            if kind == "software":
                # A process sets the sizes of its software devices once: the first call must suffice for later ones.
                wanted = device if isinstance(device, Device) else Device()
                enough_bytes = max(memory_bytes or 0, SOFTWARE_GPU_BYTES)
                software.load(replace(wanted, memory_bytes=enough_bytes), SOFTWARE_GPUS)
            opened = open_device(kind, ordinal, memory_bytes=memory_bytes)
            _executors[key] = Executor(opened, cache_bytes=memory_bytes)
        return _executors[key]


def source_of(value: Any) -> InputSource:
    """Return the source of an input that is passed by value: an array, or a View of one."""
    from kaas.executor.inputs import InputSource

    if isinstance(value, View):
        return InputSource(value.source, offset_bytes=value.offset_bytes)
    return InputSource(value)
