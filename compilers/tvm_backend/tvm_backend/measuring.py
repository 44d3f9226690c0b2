"""A process that runs candidates on a device and says how long they took; started anew when one of them ends it.

It reads one request a line from stdin and writes one answer a line to what was stdout: what kernels print goes to
stderr. It needs KaaS and no TVM.
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
"""The scalar that says how often a candidate's kernels run."""

ENOUGH_S = 0.02
"""Kernel time that a measurement should see."""

NOTHING = """.version 7.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 x) { ret; }
"""
"""Opens the device."""

MOST_REPEATS = 200
VALUES = 1 << 20


@lru_cache(maxsize=64)
def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """What a candidate reads. Integers are all 0, which is an index into anything."""
    wanted = np.dtype(kaas.Buffer("x", shape, dtype).dtype)
    if wanted.kind in "biu":
        return np.zeros(shape, wanted)
    some = np.random.default_rng(0).uniform(-1, 1, VALUES).astype(np.float32)
    return np.resize(some, shape).astype(wanted)


def measured(path: str, outputs: str | None, device: Device) -> dict[str, Any]:
    """The seconds that one launch of a candidate takes; what it writes goes to the file `outputs`."""
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
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    device = Device(sys.argv[1])
    try:
        x = kaas.Buffer("x", 1)
        nothing = kaas.Kernel(kaas.Library.from_ptx(NOTHING), "nothing", 1, 1, [kaas.Out(x)])
        kaas.run_local(kaas.KTask([nothing], [x]), device=device)
    except KaasError as error:
        answer(error=error.message)
        return 1
    answer(device=CudaDevice(0).name)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(**measured(request["task"], request["outputs"], device))
        except KaasError as error:
            lost = isinstance(error, DeviceLost)
            answer(error=f"{type(error).__name__}: {error.message}", lost=lost)
            if lost:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
