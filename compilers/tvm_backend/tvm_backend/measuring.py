"""A process that runs candidates on a device and reports their times; `trials.Bench` restarts it after a crash.

The process reads one request a line from stdin and writes one reply a line to its first stdout. The output of kernels
goes to stderr. The process needs KaaS and no TVM.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from cuda.core import Device as CudaDevice

import kaas
from kaas import Device, KaasError
from kaas.errors import DeviceLost

REPEATS = "repeats"
"""The scalar with the number of times that a candidate's kernels run."""

ENOUGH_S = 0.02
"""Kernel time that a measurement should cover."""

NOTHING = """.version 7.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 x) { ret; }
"""
"""A kernel that does nothing: its run opens the device."""

MOST_REPEATS = 200
VALUES = 1 << 20


@lru_cache(maxsize=64)
def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return the input of a candidate. Integers are all 0, which is a valid index into every tensor."""
    wanted = np.dtype(kaas.Buffer("x", shape, dtype).dtype)
    if wanted.kind in "biu":
        return np.zeros(shape, wanted)
    some = np.random.default_rng(0).uniform(-1, 1, VALUES).astype(np.float32)
    return np.resize(some, shape).astype(wanted)


def measured(path: str, outputs: str | None, device: Device) -> dict[str, Any]:
    """Return the seconds that one launch of a candidate takes, and write its outputs to the file `outputs` if named."""
    with open(path, "rb") as file:
        task = kaas.KTask.from_msgpack(file.read())
    inputs = {buffer.name: values(buffer.shape, str(buffer.dtype)) for buffer in task.inputs}

    def seconds(repeats: int) -> float:
        kernels: list[Any] = []
        given = kaas.run_local(task, inputs, scalars={REPEATS: repeats}, device=device, profile=kernels.extend)
        if outputs is not None and repeats == 1:
            arrays = {name: np.asarray(array, np.float64) for name, array in given.items()}
            np.savez(outputs, allow_pickle=False, **arrays)
        return float(sum(kernel.seconds for kernel in kernels)) / repeats

    first = seconds(1)  # the only one that is cold
    repeats = min(MOST_REPEATS, int(ENOUGH_S / max(first, 1e-7)))
    return {"seconds": [seconds(repeats) for _ in range(3)] if repeats > 1 else [first]}


def main() -> int:
    """Serve requests until stdin ends; return 1 if the device is missing or lost, else 0."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**fields: Any) -> None:
        print(json.dumps(fields), file=replies, flush=True)

    device = Device(sys.argv[1])
    try:
        x = kaas.Buffer("x", 1)
        nothing = kaas.Kernel(kaas.Library.from_ptx(NOTHING), "nothing", 1, 1, [kaas.Out(x)])
        kaas.run_local(kaas.KTask([nothing], [x]), device=device)
    except KaasError as error:
        reply(error=error.message)
        return 1
    reply(device=CudaDevice(0).name)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply(**measured(request["task"], request["outputs"], device))
        except KaasError as error:
            lost = isinstance(error, DeviceLost)
            reply(error=f"{type(error).__name__}: {error.message}", lost=lost)
            if lost:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
