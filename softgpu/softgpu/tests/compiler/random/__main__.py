"""`python -m ...compiler.random [--programs 1000] [--seed 0] [--processor x86-64]`: random programs of PTX."""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from softgpu import target
from softgpu.tests.compiler.conftest import Gpu, build_runner, load_runner
from softgpu.tests.compiler.random.programs import programs
from softgpu.tests.compiler.random.test_random import check
from softgpu.tests.compiler.random.tree import Program

BLOCK = 100
"""The programs of one run of Hypothesis: the more it has made, the longer it takes to make another one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processor", help="LLVM's name of the one to compile for, if not this machine's")
    chosen = parser.parse_args()
    blocks = {first: min(BLOCK, chosen.programs - first) for first in range(0, chosen.programs, BLOCK)}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count()) as processes:
        runner = build_runner(Path(folder))
        running = {
            processes.submit(run, runner, Path(folder, str(first)), f"{chosen.seed}.{first}", count, chosen.processor)
            for first, count in blocks.items()
        }
        done = 0
        try:
            for ended in as_completed(running):
                done += ended.result()
                print(f"{done} of {chosen.programs} random programs with seed {chosen.seed}: all as they should be")
        finally:
            processes.shutdown(cancel_futures=True)  # the others, if one has found an error


def run(runner: Path, cache: Path, block: str, count: int, name: str | None) -> int:
    """Check so many programs of a block. Return their number."""
    processor = target.of(name) if name else None
    gpu = Gpu(load_runner(runner), cache, processor=processor)

    @seed(block)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(program=programs())
    def every(program: Program) -> None:
        check(gpu, program)
        gpu.forget()

    every()
    return count


if __name__ == "__main__":
    main()
