"""`python -m ...compiler.random [--programs 1000] [--seed 0] [--processor x86-64]`: random programs of PTX."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from softgpu import target
from softgpu.tests.compiler.conftest import Gpu, build_runner, load_runner
from softgpu.tests.compiler.random.programs import programs
from softgpu.tests.compiler.random.test_random import check
from softgpu.tests.compiler.random.tree import Program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processor", help="LLVM's name of the one to compile for, if not this machine's")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processor = target.of(chosen.processor) if chosen.processor else None
        gpu = Gpu(load_runner(build_runner(Path(folder))), Path(folder) / "cache", processor=processor)

        @seed(chosen.seed)
        @settings(max_examples=chosen.programs, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(program=programs())
        def every(program: Program) -> None:
            check(gpu, program)
            gpu.forget()

        every()
    print(f"{chosen.programs} random programs with seed {chosen.seed}: all as they should be")


if __name__ == "__main__":
    main()
