"""An executor refuses a request for which its process has no memory, before Linux would end the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.device_memory import HOST_ROOM, HostRoom, available_bytes, sealed_file
from kaas.executor.executor import InputSource, RunRequest
from tests.executor.conftest import MakeExecutor

MB = 1 << 20
N = 16 * MB // 4


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MACHINE = {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n"}
NEW = {
    **MACHINE,
    "proc/self/cgroup": "0::/user/pool\n",
    "sys/fs/cgroup/user/memory.max": f"{2 * MB}\n",
    "sys/fs/cgroup/user/memory.current": f"{MB}\n",
    "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {MB // 4}\n",
    "sys/fs/cgroup/user/pool/memory.max": "max\n",
    "sys/fs/cgroup/user/pool/memory.current": f"{MB}\n",
}
OLD = {
    **MACHINE,
    "proc/self/cgroup": "4:memory:/job\n3:cpuset:/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * MB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{3 * MB // 2}\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 0\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 1 << 62),
        (MACHINE, 3 * MB),
        (NEW, MB + MB // 4),
        (OLD, MB // 2),
        ({**OLD, "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{3 * MB}\n"}, 0),
    ],
    ids=["nothing is known", "machine", "version 2", "version 1", "more than its limit"],
)
def test_the_least_of_the_machine_and_the_control_groups_counts(
    tmp_path: Path, files: dict[str, str], left: int
) -> None:
    write(tmp_path, files)
    assert available_bytes(tmp_path) == left


def test_a_look_serves_several_allocations_and_a_refusal_none() -> None:
    left = [800, 10, 800]
    room = HostRoom(lambda: left.pop(0))
    for _ in range(2):
        room.check(50, "device")
    assert left == [10, 800]
    with pytest.raises(OutOfDeviceMemory) as refused:
        room.check(50, "device")
    assert (refused.value.needed_bytes, refused.value.free_bytes) == (50, 10)
    room.check(50, "device")
    assert not left


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_a_request_without_room_is_refused_and_runs_when_there_is_room(
    make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    executor = make_executor(256 << 20, isolation=isolation)
    x, y = kaas.Buffer("x", N, "int32"), kaas.Buffer("y", N, "int32")
    args: list[Any] = [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(N)]
    task = kaas.KTask([kaas.Kernel(library, "scale", N // 128, 128, args)], [y])
    request = RunRequest(task, {"x": InputSource(np.arange(N, dtype=np.int32))}, {})
    with monkeypatch.context() as patched:
        patched.setattr(HOST_ROOM, "_look", lambda: 8 * MB)
        patched.setattr(HOST_ROOM, "_allowed_bytes", 0)
        with pytest.raises(OutOfDeviceMemory, match="this process may take 8388608 more") as refused:
            executor.run(request)
    assert refused.value.free_bytes == 8 * MB
    np.testing.assert_array_equal(executor.run(request).outputs["y"], 2 * np.arange(N))


@pytest.mark.parametrize("kind", ["of a device", "page-locked", "shared"])
def test_no_kind_of_memory_is_taken_without_room(
    make_executor: MakeExecutor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    device = make_executor(1 << 20).device
    takes: dict[str, Callable[[], object]] = {
        "of a device": lambda: device.allocate(16 * MB),
        "page-locked": lambda: device.allocate_host(16 * MB),
        "shared": lambda: sealed_file([], 16 * MB, device.ordinal, "device"),
    }
    monkeypatch.setattr(HOST_ROOM, "_look", lambda: 8 * MB)
    monkeypatch.setattr(HOST_ROOM, "_allowed_bytes", 0)
    with device.context, pytest.raises(OutOfDeviceMemory, match="this process may take 8388608 more"):
        takes[kind]()
