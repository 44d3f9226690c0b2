"""The time of the software GPU's compiler for the examples' kernels, over nvcc's for cubins of the same PTX.

`measure` and `Source` also serve benchmarks.softgpu, with the kernels of a whole network.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import llvmlite.binding  # noqa: F401  imported before the measurement, as in a process that has compiled before

from benchmarks.report import arguments, report
from softgpu import build
from softgpu.jit import Compiler

ROOT = Path(__file__).parent.parent
ROUNDS = 5

Block = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A PTX file, and its kernels with the block shapes of the examples' launches."""

    path: Path
    kernels: dict[str, Block]


SOURCES = (
    Source(
        ROOT / "kaas" / "kernels" / "nearest_neighbours.ptx",
        {"vsub": (256, 1, 1), "vadd": (256, 1, 1), "matmul": (32, 8, 1)},
    ),
    Source(ROOT / "examples" / "kernels" / "jacobi.ptx", {"jacobi": (256, 1, 1)}),
    Source(ROOT / "examples" / "kernels" / "sobel.ptx", {"sobel": (32, 8, 1)}),
)


def compile_s(library: ctypes.CDLL, source: Source, cache: Path) -> float:
    """Return the seconds until every kernel of a file can run, in a new compiler with this cache directory."""
    content = source.path.read_bytes()
    compiler = Compiler(library, cache)
    start = perf_counter()
    module = compiler.load(content)
    places = {kernel.name: place for place, kernel in enumerate(compiler.describe(module)[0].kernels)}
    for name, block in source.kernels.items():  # a graph does the same while it is built
        compiler.announce(module, places[name], block)
    for name, block in source.kernels.items():
        compiler.compile(module, places[name], block)
    elapsed_s = perf_counter() - start
    compiler.unload(module)
    return elapsed_s


def nvcc_s(nvcc: str, source: Source, folder: Path) -> float:
    """Return the seconds of one nvcc process that makes a cubin of a file."""
    command = [nvcc, "-cubin", "-arch=sm_80", str(source.path), "-o", str(folder / "made.cubin")]
    start = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - start


def measure(nvcc: str, sources: Sequence[Source]) -> dict[str, dict[str, float]]:
    """Return the best seconds by file and way; the three ways take turns, so that all see the same machine."""
    library = ctypes.CDLL(str(build.build()))
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:  # page cache and processor are warm after this
            nvcc_s(nvcc, source, Path(folder))
            compile_s(library, source, Path(folder) / "warm-up")
        for round_number in range(ROUNDS):
            cache = Path(folder) / f"cache-{round_number}"  # empty, so that the first measurement compiles
            for source in sources:
                times = {
                    "nvcc_s": nvcc_s(nvcc, source, Path(folder)),
                    "cold_s": compile_s(library, source, cache),
                    "cached_s": compile_s(library, source, cache),
                }
                known = best.setdefault(source.path.stem, times)
                best[source.path.stem] = {way: min(known[way], seconds) for way, seconds in times.items()}
    return best


def main() -> int:
    options = arguments("Compile times of the software GPU over nvcc's.")
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("softgpu_compile compares with nvcc, which is not installed here", file=sys.stderr)
        return 2
    best = measure(nvcc, SOURCES)
    nvcc_total, cold, cached = (sum(times[way] for times in best.values()) for way in ("nvcc_s", "cold_s", "cached_s"))
    detail = {f"{stem}_{way}": seconds for stem, times in best.items() for way, seconds in times.items()}
    detail |= {"nvcc_s": nvcc_total, "cold_s": cold, "cached_s": cached}
    bars = {"cold_over_nvcc": (cold / nvcc_total, "<=", 8.0), "cached_over_nvcc": (cached / nvcc_total, "<=", 0.3)}
    report("softgpu_compile", bars, detail, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
