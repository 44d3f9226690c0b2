"""Local memory of kernels: a launch without room for it is refused before it runs, and harms no other request."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceLost, LaunchLimit, OutOfDeviceMemory
from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.device.device_memory import HOST_ROOM, MemoryPool
from kaas.executor.executor import RunRequest
from tests.executor.conftest import MakeExecutor
from tests.timeouts import TIMEOUT_S

THREADS, SLOTS, DEVICE_BYTES, MB = 1024, 2, 256 << 20, 1 << 20
LOCAL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry keep(.param .u64 out)
{{ .reg .b64 %o,%a; .reg .b32 %t; .local .align 16 .b8 room[{nbytes}]; ld.param.u64 %o,[out]; mov.u32 %t,%tid.x;
  st.local.u32 [room+64],%t; ld.volatile.local.u32 %t,[room+64];
  mul.wide.u32 %a,%t,4; add.u64 %a,%a,%o; st.global.u32 [%a],%t; ret; }}"""


def request(client: str, kib: int, threads: int = THREADS) -> RunRequest:
    """Return a request whose kernel has so much local memory in each thread; its output are the threads' numbers."""
    out = kaas.Buffer("out", threads, "int32")
    code = kaas.Library.from_ptx(LOCAL.format(nbytes=kib << 10))
    task = kaas.KTask([kaas.Kernel(code, "keep", 1, threads, [kaas.Out(out)])], [out])
    return RunRequest(task, {}, {}, client)


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_a_launch_with_too_much_local_memory_is_refused_and_harms_nobody(
    make_executor: MakeExecutor, isolation: str
) -> None:
    executor = make_executor(64 << 20, isolation=isolation, slots=SLOTS)
    for _ in range(3):
        with pytest.raises(LaunchLimit) as refused:
            executor.run(request("mallory", 500))
        error = refused.value
        assert (error.what, error.limit) == ("bytes of local memory at a time", DEVICE_BYTES // SLOTS)
        assert error.given == THREADS * 500 << 10
        for client, kib in (("alice", 1), ("alice", 100), ("mallory", 120)):
            ran = executor.run(request(client, kib))
            np.testing.assert_array_equal(ran.outputs["out"], np.arange(THREADS))
    assert executor.lost is None


def test_a_launch_waits_for_no_local_memory_that_the_machine_lacks(
    make_executor: MakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, wanted = make_executor(64 << 20), request("alice", 16)
    executor.run(wanted)
    with monkeypatch.context() as patched:
        patched.setattr(HOST_ROOM, "_look", lambda: 8 * MB)
        patched.setattr(HOST_ROOM, "_allowed_bytes", 0)
        with pytest.raises(OutOfDeviceMemory, match="this process may take 8388608 more"):
            executor.run(wanted)
    np.testing.assert_array_equal(executor.run(wanted).outputs["out"], np.arange(THREADS))


WITHOUT_ADDRESSES = """
import resource
from pathlib import Path
from kaas.errors import DeviceLost
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor
from tests.executor.device.test_local_memory import request

executor = Executor(open_device("software", memory_bytes=1 << 30), cache_bytes=1 << 20, host_cache_bytes=0)
executor.run(request("alice", 1))
large = request("mallory", 500)
executor.prepare(large.task)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), resource.RLIM_INFINITY))
for wanted in (large, request("alice", 1)):
    try:
        executor.run(wanted)
    except DeviceLost as error:
        print(error.code_name, executor.lost is not None)
executor.close()
"""


@pytest.mark.processes
def test_a_launch_that_fails_for_memory_while_it_runs_loses_the_device() -> None:
    """Its status sticks to the context, so the executor must be replaced: no later request can run there."""
    command = [sys.executable, "-c", WITHOUT_ADDRESSES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.stdout == "CUDA_ERROR_OUT_OF_MEMORY True\n" * 2, done.stderr


def test_a_device_that_is_lost_while_memory_is_taken_leaves_no_reservation_open(
    make_executor: MakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request, which is waiting for the lock then, gets the loss and no internal fault."""
    executor = make_executor(1 << 20, slots=SLOTS)

    def lost(*_: Any) -> None:
        raise DeviceLost("it burns", call="cuMemFreeAsync", code=700, code_name="CUDA_ERROR_ILLEGAL_ADDRESS")

    with monkeypatch.context() as patched:
        patched.setattr(TieredMemory, "_allocate", lost)
        patched.setattr(MemoryPool, "settle", lost)
        with pytest.raises(DeviceLost, match="it burns"):
            executor.run(request("alice", 1))
    assert executor.cache.hit({}, None, 0) is not None
    assert executor.cache.used_bytes == 0
