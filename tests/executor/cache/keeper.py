"""An executor whose objects outlive it, in a process of its own: `python -m tests.executor.cache.keeper`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
from cuda.bindings import driver

import kaas.executor.cache.journal
import kaas.executor.cache.kept_objects
import kaas.executor.cache.tiered_memory
import kaas.executor.device.host_to_device
import kaas.executor.device.windows.pages
import kaas.executor.device.windows.window
import kaas.executor.executor
from kaas.executor.cache.journal import CacheFiles, CacheJournal
from kaas.executor.device.device import open_device
from kaas.executor.device.windows.pages import PAGE_BYTES
from kaas.executor.executor import Executor, InputSource

MIB = 1 << 20
NBYTES = 3 * MIB  # of an object: two share a page
CAPACITY_BYTES = 14 * MIB
TRACED = {
    module.__file__
    for module in (
        kaas.executor.cache.journal,
        kaas.executor.cache.kept_objects,
        kaas.executor.cache.tiered_memory,
        kaas.executor.device.host_to_device,
        kaas.executor.device.windows.pages,
        kaas.executor.device.windows.window,
        kaas.executor.executor,
    )
}


class Steps:
    """Calls a function before each line that the executor's modules execute in this thread."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            self._step()
        return self._trace


def executor(files: CacheFiles, isolation: Any) -> Executor:
    device = open_device("software", memory_bytes=32 * MIB)
    device.files = files
    kaas.executor.cache.kept_objects.LEAST_BYTES = 1
    return Executor(device, cache_bytes=CAPACITY_BYTES, host_cache_bytes=0, isolation=isolation)


def tuple_of(number: int) -> list[InputSource]:
    """Constants of one function: two objects."""
    keys = [bytes([number, at]) for at in (1, 2)]
    return [InputSource(np.full(NBYTES, sum(key), np.uint8), key=key, constants=bytes([number])) for key in keys]


def work(made: Executor) -> None:
    """Load three tuples, of which two fit; then some of the objects leave, and come again."""
    for number in (10, 20, 30, 10):
        made.load(tuple_of(number), client="client")
    made.flush([bytes([10, 2])])
    made.load(tuple_of(10), client="client")
    made.flush()
    made.load(tuple_of(20), client="client")


def left(files: CacheFiles) -> list[bytes]:
    """Return the keys of objects that the next executor would adopt now. All their bytes must be there."""
    copy = os.memfd_create("copy")
    os.pwrite(copy, os.pread(files.journal, 1 << 20, 0), 0)
    groups = CacheJournal(copy).groups
    os.close(copy)
    found, pages = [], list[int]()
    for group in groups:
        used = set[int]()
        for each in group.objects:
            for at in (each.place, each.place + each.nbytes // 2, each.place + each.nbytes - 64):
                offset = group.offsets[at // PAGE_BYTES] + at % PAGE_BYTES
                assert os.pread(files.memory, 64, offset) == bytes([sum(each.key)]) * 64, each
                used.add(at // PAGE_BYTES)
            found.append(each.key)
        pages += [group.offsets[page] for page in used]
    assert len(pages) == len({*pages})
    return found


def traced(files: CacheFiles, isolation: str) -> dict[str, Any]:
    """Look at each step at what a kill there would leave."""
    seen: list[list[bytes]] = []
    made = executor(files, isolation)
    with Steps(lambda: seen.append(left(files))):
        work(made)
    assert [bytes([20, 1]), bytes([20, 2])] == sorted(left(files))
    return {"steps": len(seen), "states": len({tuple(each) for each in seen})}


def killed(files: CacheFiles, isolation: str, step: int) -> dict[str, Any]:
    """End by SIGKILL at a step."""
    steps = iter(range(step))

    def kill_last() -> None:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    made = executor(files, isolation)
    with Steps(kill_last):
        work(made)
    raise AssertionError("there are fewer steps")


def adopted(files: CacheFiles, isolation: str) -> dict[str, Any]:
    """Return the keys that an executor has from the start, and whether their bytes are right; then let it work."""
    named = left(files)
    made = executor(files, isolation)
    there = made.cache.device.values
    count, right = len(there), True
    with made.device.context:
        for key, value in there.items():
            data = np.empty(value.nbytes, np.uint8)
            assert driver.cuMemcpyDtoH(data, value.home.written_at(value.address), value.nbytes)[0] == 0
            right &= bool((data == sum(key)).all())
    used = os.fstat(files.memory).st_blocks * 512
    work(made)
    left(files)
    made.close()
    return {"named": len(named), "there": count, "right": right, "used": used}


if __name__ == "__main__":
    action, memory, journal, isolation, *rest = sys.argv[1:]
    actions: dict[str, Callable[..., dict[str, Any]]] = {"traced": traced, "killed": killed, "adopted": adopted}
    arguments: Sequence[int] = [int(each) for each in rest]
    print(json.dumps(actions[action](CacheFiles(int(memory), int(journal)), isolation, *arguments)), flush=True)
