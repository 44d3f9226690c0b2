"""`make gpu`: the tests and benchmarks that need a GPU, with the packages there are; results go to benchmarks/results.

Needs Python, NumPy, pytest, cuda-bindings, cuda-core and msgspec; for compiled models safetensors. With Ray there too,
the GPU tests of all other folders and the benchmarks that go through Ray run as well; with apache-tvm and onnx, models
over TVM's virtual machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NEEDED = ("numpy", "pytest", "msgspec", "cuda")
WITHOUT_RAY = ("gpu_stages", "launch", "cache", "clients", "overlap", "slots")
WITH_RAY = ("overhead",)
WITH_MORE = {"gpu_models": ("tvm", "onnx")}
"""Benchmarks that need further packages."""


def run_tests(ray: bool) -> bool:
    """Whether all passed. Without Ray the conftest files above are kept out: they need packages beyond the list."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "tests" if ray else "tests/gpu"]
    if not ray:
        command += ["--confcutdir", "tests/gpu"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def run_benchmark(name: str) -> bool:
    """Whether it ran; what it measured is stored and printed, and judged by readers."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    folders = [str(ROOT / "compilers" / "tvm_backend"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        print(f"benchmark {name}: exit status {ended.returncode}\n{ended.stdout}")
        return False
    result = json.loads(ended.stdout.splitlines()[-1])
    path = RESULTS / f"gpu-{name.removeprefix('gpu_')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"benchmark {name} -> {path.relative_to(ROOT)}")
    for bar, (measured, comparison, limit) in result["bars"].items():
        print(f"  {bar:<32} {measured:.3g} {comparison} {limit:g}")
    return True


def main() -> int:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"make gpu: {sys.executable} lacks {', '.join(missing)}; choose another with make gpu PYTHON=...")
        return 2
    from tests.gpu.conftest import why_no_gpu

    if why := why_no_gpu():
        print(f"make gpu: {why}; nothing was run")
        return 2
    ray = importlib.util.find_spec("ray") is not None
    print(f"with Ray: {'yes' if ray else 'no: only what runs without it'}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    passed = run_tests(ray)
    names = list(WITHOUT_RAY + (WITH_RAY if ray else ()))
    for name, packages in WITH_MORE.items():
        if lacking := [package for package in packages if importlib.util.find_spec(package) is None]:
            print(f"benchmark {name}: not run, {sys.executable} lacks {', '.join(lacking)}")
        else:
            names.append(name)
    ran = [run_benchmark(name) for name in names]
    return 0 if passed and all(ran) else 1


if __name__ == "__main__":
    sys.exit(main())
