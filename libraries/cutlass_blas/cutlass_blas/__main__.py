"""`python -m cutlass_blas build`: the kernels of the core, or those named, built ahead of their use."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cutlass_blas import building
from cutlass_blas.instances import CORE, EXTRAS
from kaas import KaasError, errors


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cutlass_blas", description="The built-in BLAS library of KaaS.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build what is not there yet (needs nvcc and the headers of CUTLASS)")
    build.add_argument("names", nargs="*", metavar="NAME", help="kernels; the whole core if none is named")
    build.add_argument("-j", "--at-once", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    build.add_argument("--into", type=Path, metavar="FOLDER", help="instead of this user's cache")
    commands.add_parser("list", help="the names of the core")
    chosen = parser.parse_args(arguments)
    if chosen.command == "list":
        sys.stdout.write("".join(f"{name}\n" for name in (*EXTRAS, *(instance.name for instance in CORE))))
        return 0
    try:
        _build(chosen.names, max(chosen.at_once, 1), chosen.into)
    except KaasError as error:
        sys.stderr.write(f"{error.log}\n" if isinstance(error, errors.CompileFailed) and error.log else "")
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _build(names: Sequence[str], at_once: int, folder: Path | None) -> None:
    def show(step: building.Progress) -> None:
        sys.stdout.write(f"[{step.done}/{step.total}] {step.file} {step.seconds:.0f} s\n")
        sys.stdout.flush()

    start = time.monotonic()
    wanted = building.jobs(names)
    made = building.build(wanted, folder, at_once, show)
    if made:
        sys.stdout.write(f"built {len(made)} of {len(wanted)} files in {time.monotonic() - start:.0f} s\n")
    else:
        sys.stdout.write(f"all {len(wanted)} files of the BLAS library are built\n")


if __name__ == "__main__":
    sys.exit(main())
