"""The workloads as eTasks, as a user writes them: NumPy and cuda.core, with the kernels of the kTasks.

Each makes its constants and loads its code once, when its process starts, and keeps its device memory between calls.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

from kaas.papers.small.kernels import ITERATION, LAYER, ptx, symbol
from kaas.papers.small.testbed import ELEMENTS, SMALL
from kaas.papers.workloads import WORKLOADS

VALUE = 1.0
"""The value of an eTask's constants: each client has a process of its own, with memory of its own."""


class Layers:
    """A chain of launches through two temporaries. Each subclass is a workload, and `workload` is its name."""

    workload: ClassVar[str]

    def __init__(self) -> None:
        self._work = work = WORKLOADS[self.workload]
        self._device = Device(0)
        self._device.set_current()
        self._stream = self._device.create_stream()
        self._pinned = LegacyPinnedMemoryResource()
        body = ITERATION if work.iterations > 1 else LAYER
        self._kernel = ObjectCode.from_ptx(ptx(symbol(work), body).encode()).get_kernel(symbol(work))
        self._config = LaunchConfig(grid=1, block=ELEMENTS)
        self._weights = [self._loaded(each) for each in SMALL.constants(work, VALUE).values()]
        self._x, self._host_x = self._pair(SMALL.bytes(work.input_bytes))
        self._y, self._host_y = self._pair(SMALL.bytes(work.output_bytes))
        between = SMALL.bytes(max(0, work.dynamic_bytes - work.input_bytes - work.output_bytes) // 2)
        self._temporaries = [self._device.allocate(between, stream=self._stream) for _ in range(2)]
        self._stream.sync()

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the output, float32, for an input of float32."""
        np.from_dlpack(self._host_x).view(np.float32)[:] = x.reshape(-1)
        self._x.copy_from(self._host_x, stream=self._stream)
        self._launch()
        self._y.copy_to(self._host_y, stream=self._stream)
        self._stream.sync()
        return np.from_dlpack(self._host_y).view(np.float32).copy()

    def _launch(self) -> None:
        before, last = self._x, self._work.launches - 1
        for number in range(self._work.launches):
            after = self._y if number == last else self._temporaries[number % 2]
            pair = (self._weights[(number + turn * (last + 1)) % len(self._weights)] for turn in range(2))
            launch(self._stream, self._config, self._kernel, before, *pair, after)
            before = after

    def _pair(self, nbytes: int) -> tuple[Any, Any]:
        """Return memory of the device, and page-locked memory of the host."""
        return self._device.allocate(nbytes, stream=self._stream), self._pinned.allocate(nbytes)

    def _loaded(self, array: np.ndarray[Any, Any]) -> Any:
        there, host = self._pair(array.nbytes)
        np.from_dlpack(host).view(np.float32)[:] = array
        there.copy_from(host, stream=self._stream)
        self._stream.sync()
        return there


class Resnet50(Layers):
    """resnet50, with steps around it."""

    workload = "resnet50"


class Bert(Layers):
    """BERT, with steps around it."""

    workload = "bert"


class Cgemm(Layers):
    """Two launches with one large constant."""

    workload = "cgemm"


class Micro(Layers):
    """The micro-benchmark of §5.2."""

    workload = "micro"


class Jacobi(Layers):
    """An iterative solver: one kernel, launched again and again."""

    workload = "jacobi"

    def _launch(self) -> None:
        self._y.fill(0, stream=self._stream)
        for _ in range(self._work.iterations):
            launch(self._stream, self._config, self._kernel, self._x, self._y)
