"""A process whose device memory lies in a file that another process keeps: it adopts some of it, and makes more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

import softgpu
from softgpu import adoption
from softgpu.tests.driver.calls import ok
from softgpu.tests.driver.test_windows import ON_DEVICE, READWRITE, WHOLE, put_in
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[4]
COUNT = 16
MEMORY_BYTES = 16 * WHOLE


def adopter(file: int, offsets: Sequence[int], *new: int) -> dict[str, Any]:
    """Run the process, which ends itself by SIGKILL.

    Args:
        file: the memory file. offsets: what it adopts. new: the number with which it fills each unit that it makes.

    Returns:
        "error", or: "adopted": the numbers in each adopted unit; "offsets": of the new ones; "free": bytes.
    """
    words = [json.dumps([file, list(offsets), list(new)])]
    command = [sys.executable, "-m", "softgpu.tests.driver.adopter", *words]
    done = subprocess.run(command, cwd=ROOT, pass_fds=[file], capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(file: int, offsets: Sequence[int], new: Sequence[int]) -> dict[str, Any]:
    softgpu.load([MEMORY_BYTES])
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    try:
        adopted = adoption.adopt(file, offsets)
    except softgpu.SoftgpuError as error:
        return {"error": str(error)}
    os.close(file)
    made = [ok(driver.cuMemCreate(WHOLE, ON_DEVICE, 0)) for _ in new]
    count = len(adopted) + len(made)
    address = int(ok(driver.cuMemAddressReserve(max(1, count) * WHOLE, 0, 0, 0)))
    for at, memory in enumerate([*adopted, *made]):
        put_in(address + at * WHOLE, memory, READWRITE)
    for at, number in enumerate(new, len(adopted)):
        ok(driver.cuMemsetD32(address + at * WHOLE, number, WHOLE // 4))
    ok(driver.cuCtxSynchronize())
    seen = [np.empty(WHOLE // 4, np.uint32) for _ in adopted]
    for at, each in enumerate(seen):
        ok(driver.cuMemcpyDtoH(each, address + at * WHOLE, WHOLE))
    free, _ = ok(driver.cuMemGetInfo())
    return {
        "adopted": [sorted({*each.tolist()}) for each in seen],
        "offsets": [adoption.offset(memory) for memory in made],
        "free": int(free),
    }


if __name__ == "__main__":
    print(json.dumps(main(*json.loads(sys.argv[1]))), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
