"""What ends with a block of code, well or badly: a thread's stay in a context, a request's hold on memory."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from kaas.errors import DeviceLost
from kaas.executor.device import Device, Stream
from kaas.executor.gate import Gate
from kaas.executor.memory import Lease


class Entered:
    """The device's context, for the calling thread, and the end of everything once the device is lost."""

    __slots__ = ("_device", "_gate")

    def __init__(self, device: Device, gate: Gate) -> None:
        self._device = device
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.check()
        self._device.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DeviceLost):
            self._gate.lose(error)
        else:
            self._device.leave()


class Undone:
    """What a request had taken is given back if the work that it is for fails, once its stream does nothing with it.
    With a lost device nothing can be given back."""

    __slots__ = ("_give_back", "_lease", "_stream")

    def __init__(self, give_back: Callable[[Lease], None], lease: Lease, stream: Stream | None = None) -> None:
        self._give_back = give_back
        self._lease = lease
        self._stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, DeviceLost):
            if self._stream is not None:
                self._stream.synchronize()
            self._give_back(self._lease)
