"""The software GPU's modelled time against wall time on this machine: copies, overlap in two streams, four devices.

There are copies of 16 MB at a modelled 2 GB/s, and kernels as long as a copy. Figures are medians of wall times.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cuda.bindings import driver

import softgpu
from benchmarks.report import arguments, report
from kaas.executor.device.driver_errors import call

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
RATE = 2e9
BYTES = 16 << 20
COPY_S = BYTES / RATE
STEPS = 16
DEVICES = 4
REPEATS = 5
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


class Station:
    """A device with two streams and their buffers."""

    def __init__(self, ordinal: int) -> None:
        self.context = call(driver.cuDevicePrimaryCtxRetain, ordinal)
        call(driver.cuCtxSetCurrent, self.context)
        library = call(driver.cuLibraryLoadData, PTX.read_bytes() + b"\0", [], [], 0, [], [], 0)
        self.kernel = call(driver.cuKernelGetFunction, call(driver.cuLibraryGetKernel, library, b"empty"))
        self.streams = [call(driver.cuStreamCreate, NON_BLOCKING) for _ in range(2)]
        self.sources = [int(call(driver.cuMemHostAlloc, BYTES, 0)) for _ in range(2)]
        self.targets = [call(driver.cuMemAlloc, BYTES) for _ in range(2)]

    def submit(self, steps: int, lanes: int, *, kernels: bool) -> None:
        """Submit steps of a copy to the device and perhaps a kernel, on so many streams in turn."""
        call(driver.cuCtxSetCurrent, self.context)
        for step in range(steps):
            lane = step % lanes
            stream, target = self.streams[lane], self.targets[lane]
            call(driver.cuMemcpyHtoDAsync, target, self.sources[lane], BYTES, stream)
            if kernels:
                values: Any = ((target,), (None,))
                call(driver.cuLaunchKernel, self.kernel, 1, 1, 1, 32, 1, 1, 0, stream, values, 0)

    def finish(self) -> None:
        call(driver.cuCtxSetCurrent, self.context)
        call(driver.cuCtxSynchronize)


def seconds(stations: list[Station], submit: Callable[[Station], None]) -> float:
    """Return the median seconds of the work on all these devices at once."""
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        for station in stations:
            submit(station)
        for station in stations:
            station.finish()
        times.append(perf_counter() - began)
    return median(times[1:])


def main() -> None:
    options = arguments(__doc__ or "")
    model = softgpu.Model(copy_bytes_per_s=RATE, kernels={"empty": softgpu.Takes(COPY_S)})
    softgpu.load([softgpu.Device(64 << 20, model)] * DEVICES)
    call(driver.cuInit, 0)
    stations = [Station(ordinal) for ordinal in range(DEVICES)]
    one = stations[:1]
    copies_s = seconds(one, lambda station: station.submit(STEPS, 1, kernels=False))
    serial_s = seconds(one, lambda station: station.submit(STEPS, 1, kernels=True))
    overlapped_s = seconds(one, lambda station: station.submit(STEPS, 2, kernels=True))
    four_s = seconds(stations, lambda station: station.submit(STEPS, 2, kernels=True))
    bars = {
        "copy_over_bandwidth": (STEPS * COPY_S / copies_s, ">=", 0.9),
        "overlapped_over_serial": (overlapped_s / serial_s, "<=", 0.6),
        "four_devices_over_one": (four_s / overlapped_s, "<=", 1.2),
    }
    detail = {"copies_s": copies_s, "serial_s": serial_s, "overlapped_s": overlapped_s, "four_devices_s": four_s}
    report("softgpu_time", bars, detail, options.json)


if __name__ == "__main__":
    main()
