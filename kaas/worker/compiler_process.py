"""The process that compiles one image of a kTask for software devices: `python -m kaas.worker.compiler_process`.

The code is a stranger's. It does not run here, but the compiler may be led to take for ever, or all memory. So this
process has limits, and the walls of an executor with a folder of its own. The pool takes the code that it asked for
from that folder, and no other. Instead of compiling, such a process asks providers for the code that a kTask names;
and what providers give is compiled by processes that read nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import msgspec

from kaas.code import providers
from kaas.errors import Unprovided
from kaas.ktask.images import Image
from kaas.worker.process_orders import CompilerOrders, CompilerWork
from kaas.worker.processes import end_group, ordered, report_ready
from softgpu.ahead import WrittenCache, namespace, prepare
from softgpu.disk_cache import CACHE_BYTES, DiskCache
from softgpu.errors import SoftgpuError

NICENESS = 5
"""The niceness of this process, so that requests come first: where they keep the processors busy, it gets a third of
what another process gets."""
AUTOGROUP = "/proc/self/autogroup"
"""Where Linux shares processors among sessions, it counts for the session, which is this process."""


def main() -> None:
    word_file = int(sys.argv[1])
    orders: CompilerOrders = ordered(sys.stdin.buffer, end_group, _limit)
    prepare()
    report_ready(word_file, f"{namespace()} {process_time()}".encode())  # it has read nothing of a client yet
    with os.fdopen(orders.work, "rb") as work:
        todo: CompilerWork = pickle.load(work)
    limit_s = math.ceil(process_time() + todo.limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))  # first SIGXCPU, which says why; then SIGKILL
    try:
        _work(todo, Path(orders.folder))
    except OSError as error:
        sys.exit(error.errno)


def _work(todo: CompilerWork, folder: Path) -> None:
    """Do what is to do.

    Raises:
        OSError: the code cannot be written.
    """
    own = WrittenCache(folder, CACHE_BYTES)
    for name in todo.names:
        with contextlib.suppress(Unprovided):  # the executor asks again, and raises it
            found = [(image.kind, image.data) for image in providers.code(name)]
            own.put(_entry(name), msgspec.msgpack.encode(found))
    for image in todo.images:
        with contextlib.suppress(SoftgpuError):  # the executor finds the reason in the cache, and raises it
            image.compile(folder)


_images = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def provided(folder: Path, names: Sequence[Image]) -> dict[Image, Sequence[Image]]:
    """Return the code that a process has written to its folder, by its names, which were the work of the process."""
    own = DiskCache(folder, CACHE_BYTES)
    found = {name: own.get(_entry(name)) for name in names}
    return {name: [Image(*each) for each in _images(data)] for name, data in found.items() if data is not None}


def _entry(name: Image) -> str:
    return f"{hashlib.sha256(name.data).hexdigest()}.provided"


def _limit(orders: CompilerOrders) -> None:
    """Give up what this process does not need. It has a single thread."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # Linux has no such groups here
        Path(AUTOGROUP).write_text(str(NICENESS))
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, orders.limit_bytes),
        (resource.RLIMIT_FSIZE, CACHE_BYTES),  # the pool reads its files
    ):
        resource.setrlimit(limit, (most, most))
    if orders.sandbox is not None:
        orders.sandbox.enter()


if __name__ == "__main__":
    main()
