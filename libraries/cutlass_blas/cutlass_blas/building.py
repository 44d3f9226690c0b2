"""Builds the core ahead of its use: only the missing files, several at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from cutlass_blas import store
from cutlass_blas.compiling import toolchain
from cutlass_blas.instances import CORE, EXTRAS, Instance, parse


@dataclass(frozen=True, slots=True)
class Job:
    """A file to build."""

    file: str
    build: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Progress:
    """A file was built, in so many seconds; `done` of `total` files are built now."""

    done: int
    total: int
    file: str
    seconds: float


ADAPTER = "adapter"
"""The name of the core's adapter among the names of kernels."""


def jobs(names: Iterable[str] = ()) -> tuple[Job, ...]:
    """Return the files that these instances and other device code need; without names, those of the core and all other.

    An instance gets an adapter of its own, unless it is of the core and `ADAPTER` is named too.

    Raises:
        UnknownSymbol: no code has such a name.
    """
    wanted = tuple(names) or (ADAPTER, *EXTRAS, *(instance.name for instance in CORE))
    kernels = [name for name in wanted if name != ADAPTER]
    alone = [parse(name) for name in kernels if name not in EXTRAS]
    adapters: list[tuple[Instance, ...]] = [(instance,) for instance in alone]
    if ADAPTER in wanted:
        adapters = [CORE, *((instance,) for instance in alone if instance not in CORE)]
    # the adapter of the core takes longest, so it begins first
    return (
        *(Job(store.adapter_file(instances), _adapter(instances)) for instances in adapters),
        *(Job(store.kernels_file(name), _kernels(name)) for name in kernels),
    )


def build(
    wanted: Iterable[Job],
    folder: Path | None = None,
    at_once: int = 1,
    report: Callable[[Progress], None] | None = None,
) -> tuple[Path, ...]:
    """Build the files that a folder, or the cache of this user, lacks, and return their paths.

    Files that the cache has are copied to the folder.

    Raises:
        MissingPackage: a file must be built, and there is no compiler.
        CompileFailed: the first file that failed; running builds are finished, and no others begun.
    """
    missing = [job for job in wanted if store.find(job.file, folder) is None]
    if not all(store.find(job.file) for job in missing):
        toolchain()  # a missing compiler is reported before any build begins
    target = folder or store.cached()
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(_made, job, target): job for job in missing}
        try:
            for done, future in enumerate(as_completed(running), start=1):
                seconds = future.result()
                if report is not None:
                    report(Progress(done, len(missing), running[future].file, seconds))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tuple(target / job.file for job in missing)


def _made(job: Job, folder: Path) -> float:
    start = time.monotonic()
    here = store.find(job.file)
    store.made(folder / job.file, lambda: store.contents(here) if here else job.build())
    return time.monotonic() - start


def _adapter(instances: tuple[Instance, ...]) -> Callable[[], bytes]:
    return lambda: store.build_adapter(instances)


def _kernels(name: str) -> Callable[[], bytes]:
    return lambda: store.build_kernels(name)
