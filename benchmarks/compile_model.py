"""The cost of compiling ResNet-50 again, in a process that finds the compiled model, over the first time.

    python -m benchmarks.compile_model [--json] [--rounds 3]

Each measurement is a new process. The first of a round finds an empty store, the second finds the model of the first.
The time is that of `tvm_backend.compile`: modules, TVM's included, are imported before. Reading the model is measured
separately, and `..._with_loading` includes it on both sides. Needs apache-tvm and onnx.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from benchmarks.report import parser, positive, report

MODEL = "resnet50"
MODULES = ("onnx", "tvm_backend", "tvm_backend.compiling", "tvm_backend.tasks", "tvm_backend.frontends.from_onnx",
           "tvm.relax.frontend.onnx", "kaas.models.model")  # fmt: skip
"""The modules that `compile` imports."""


def once(path: Path) -> dict[str, float]:
    """Return the seconds to read and to compile a model in this process; "cpu" is processor time of its threads."""
    onnx, tvm_backend, *_ = map(import_module, MODULES)
    began = perf_counter()
    model = onnx.load(path)
    loaded, worked = perf_counter(), process_time()
    tvm_backend.compile(model, name=MODEL, progress=lambda _: None)
    return {
        "load_s": loaded - began,
        "compile_s": perf_counter() - loaded,
        "compile_cpu_s": process_time() - worked,
    }


def elsewhere(path: Path, caches: Path) -> dict[str, float]:
    """Return the same from a new process, which keeps its caches in a folder."""
    command = [sys.executable, "-m", "benchmarks.compile_model", "--once", str(path)]
    environment = os.environ | {"XDG_CACHE_HOME": str(caches)}
    environment.pop("KAAS_MODEL_CACHE", None)
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def main() -> int:
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=positive, default=3)
    options.add_argument("--once", type=Path, metavar="MODEL", help="make one measurement in this process")
    chosen = options.parse_args()
    if chosen.once:
        print(json.dumps(once(chosen.once)))
        return 0
    import onnx

    from benchmarks.models import MODELS

    times: dict[str, list[dict[str, float]]] = {"first": [], "again": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{MODEL}.onnx"
        onnx.save(MODELS[MODEL].graph(), path)
        for turn in range(chosen.rounds):
            for which in times.values():
                which.append(elsewhere(path, Path(folder) / f"caches-{turn}"))
    p50 = {f"{which}_{what}": median(one[what] for one in found)
           for which, found in times.items() for what in found[0]}  # fmt: skip
    first, again = (p50[f"{which}_load_s"] + p50[f"{which}_compile_s"] for which in times)
    bars = {"recompile_over_compile": (p50["again_compile_s"] / p50["first_compile_s"], "<=", 0.05)}
    detail = p50 | {"recompile_over_compile_with_loading": again / first, "rounds": chosen.rounds}
    report("compile_model", bars, detail, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
