"""`make gpu`: runs the tests and benchmarks that need a GPU, with the installed packages.

Results: benchmarks/results/gpu-NAME.json and docs/benchmarks.md. It needs Python, NumPy, pytest, cuda-bindings,
cuda-core and msgspec, and safetensors for compiled models. With Ray it also runs a pool on Ray, and the benchmarks that
use Ray; with apache-tvm and onnx, models against TVM's virtual machine; with CuPy, the BLAS library against cuBLAS. The
BLAS library is tested with its built kernels: nvcc and the headers of CUTLASS build the missing ones. On a machine
without them, run `python -m cutlass_blas build --into libraries/cutlass_blas/cutlass_blas/packed` on another machine,
and copy the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import page
from tests.providers import installed, write_metadata

ROOT = Path(__file__).parent.parent.parent
Environment = dict[str, str]
NEEDED = ("numpy", "pytest", "msgspec", "cuda")
WITHOUT_RAY = ("gpu_stages", "launch", "cache", "clients", "overlap", "slots")
WITH_RAY = ("path",)
WITH_MORE = {"gpu_models": ("tvm", "onnx"), "gemm": ("cupy",), "isolation": (), "gpu_shares": ()}
"""Benchmarks that need further packages."""
WITH_BLAS = ("gemm", "isolation", "gpu_shares")
"""Benchmarks that need the kernels of the BLAS library."""
OPTIONS = {"gemm": ("--device", "gpu"), "isolation": ("--device", "gpu")}
DISTRIBUTIONS = (ROOT / "softgpu", ROOT / "compilers" / "tvm_backend", ROOT / "libraries" / "cutlass_blas")
"""The repository's other distributions, which need not be installed."""


def run_tests(environment: Environment) -> bool:
    """Return True if all tests passed. The conftest files above are left out: they need more packages."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "tests/gpu", "--confcutdir", "tests/gpu"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def built(environment: Environment) -> bool:
    """Build the missing kernels of the BLAS library. Return True if all are there."""
    command = [sys.executable, "-m", "cutlass_blas", "build"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def run_benchmark(name: str, environment: Environment) -> bool:
    """Run a benchmark; store and print its results. Return True if it ran, whatever it measured."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *OPTIONS.get(name, ())]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        print(f"benchmark {name}: exit status {ended.returncode}\n{ended.stdout}")
        return False
    result = json.loads(ended.stdout.splitlines()[-1])
    result["benchmark"] = f"gpu-{name.removeprefix('gpu_')}"
    path = page.keep(result, {"device": gpu_name(), **page.machine()})
    print(f"benchmark {name} -> {path.relative_to(ROOT)}")
    for bar, (measured, comparison, limit) in result["bars"].items():
        print(f"  {bar:<32} {measured:.3g} {comparison} {limit:g}")
    return True


def gpu_name() -> str:
    """Return the first GPU's name."""
    from kaas.executor.device.device import open_device

    device = open_device("gpu", 0)
    try:
        return device.info().name
    finally:
        device.close()


def with_distributions(folder: Path) -> Environment:
    """Return the environment with all distributions on the path. `folder` gets the metadata of their providers."""
    if not installed("cutlass_blas"):
        write_metadata(folder, "cutlass_blas", "cutlass_blas.provider:images")
    folders = [*map(str, DISTRIBUTIONS), str(folder), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def main() -> int:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"make gpu: {sys.executable} lacks {', '.join(missing)}; choose another with make gpu PYTHON=...")
        return 2
    sys.path[:0] = map(str, DISTRIBUTIONS)  # the folder softgpu/ beside them is no package
    from tests.gpu.conftest import why_no_gpu

    if why := why_no_gpu():
        print(f"make gpu: {why}; nothing was run")
        return 2
    ray = importlib.util.find_spec("ray") is not None
    print(f"with Ray: {'yes' if ray else 'no: only tests and benchmarks without it'}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = with_distributions(Path(folder))
        blas = built(environment)
        passed = run_tests(environment)
        ran = [run_benchmark(name, environment) for name in chosen(ray, blas)]
    page.main()
    return 0 if passed and all(ran) else 1


def chosen(ray: bool, blas: bool) -> list[str]:
    """Return the benchmarks whose packages are installed."""
    names = list(WITHOUT_RAY + (WITH_RAY if ray else ()))
    for name, packages in WITH_MORE.items():
        lacking = [package for package in packages if importlib.util.find_spec(package) is None]
        if name in WITH_BLAS and not blas:
            lacking.append("the kernels of the BLAS library")
        if lacking:
            print(f"benchmark {name}: not run, {sys.executable} lacks {', '.join(lacking)}")
        else:
            names.append(name)
    return names


if __name__ == "__main__":
    sys.exit(main())
