"""`python -m cutlass_blas`: builds kernels ahead of their use, and measures them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_blas import building
from cutlass_blas.instances import CORE, EXTRAS
from kaas import Device, KaasError, errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it fails with a KaasError, else 0."""
    parser = argparse.ArgumentParser(prog="python -m cutlass_blas", description="The built-in BLAS library of KaaS.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build the missing files (needs nvcc and the headers of CUTLASS)")
    build.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="kernels, or adapter for the core's adapter; without a name, everything",
    )
    build.add_argument("-j", "--at-once", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    build.add_argument("--into", type=Path, metavar="FOLDER", help="the folder, instead of this user's cache")
    commands.add_parser("list", help="the names of the core")
    tune = commands.add_parser("tune", help="measure the kernels for a product, and have gemm take the fastest")
    tune.add_argument("sizes", nargs=3, type=int, metavar=("M", "N", "K"))
    tune.add_argument("dtypes", nargs="*", default=["float32"], metavar="DTYPE")
    tune.add_argument("--trans", default="nn", metavar="AB", help='of A and of B, each n, t or c: "nt"')
    tune.add_argument("--most", type=int, metavar="N", help="measure at most N kernels, the likeliest first")
    tune.add_argument("--device", choices=("gpu", "software"), default="gpu")
    tune.add_argument(
        "--arch", metavar="SM", help="architecture of the result, as sm_90; the software GPU's counts only with it"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "build" and chosen.at_once < 1:
        build.error(f"-j is 1 or more, not {chosen.at_once}")
    if chosen.command == "list":
        sys.stdout.write("".join(f"{name}\n" for name in (*EXTRAS, *(instance.name for instance in CORE))))
        return 0
    try:
        if chosen.command == "tune":
            _tune(chosen)
        else:
            _build(chosen.names, chosen.at_once, chosen.into)
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


def _tune(chosen: argparse.Namespace) -> None:
    from cutlass_blas import tuning

    def show(number: int, of: int, outcome: tuning.Measured | tuning.Failed) -> None:
        name, slices = outcome.choice
        result = f"{outcome.seconds * 1e6:.1f} us" if isinstance(outcome, tuning.Measured) else outcome.error.message
        sys.stdout.write(f"[{number}/{of}] {name}{f' in {slices} slices' if slices > 1 else ''}: {result}\n")
        sys.stdout.flush()

    options: dict[str, Any] = {
        "trans_a": chosen.trans[:1],
        "trans_b": chosen.trans[1:],
        "most": chosen.most,
        "arch": chosen.arch,
    }
    device = Device(chosen.device)
    for tuned in tuning.tune(chosen.sizes, chosen.dtypes, **options, device=device, progress=show):
        sys.stdout.write(f"{tuned.best.choice.instance} is the fastest on {tuned.device}\n")


if __name__ == "__main__":
    sys.exit(main())
