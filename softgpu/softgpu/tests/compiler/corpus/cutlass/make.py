"""`python -m ...compiler.corpus.cutlass.make INCLUDE`: PTX of CUTLASS kernels, and the parameters of their launches.

INCLUDE: the headers, as the package nvidia-cutlass has them in cutlass_library/source/include. Needs nvcc.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = {
    "sgemm": ctypes.c_float, "cgemm": ctypes.c_float * 2, "dgemm": ctypes.c_double, "sgemm_tt": ctypes.c_float,
    "sgemm_async": ctypes.c_float, "hgemm": ctypes.c_float,
}  # fmt: skip
SIZES = [(1, 1, 1), (33, 70, 19), (130, 129, 40)]
EIGHTS = [(8, 8, 8), (40, 72, 24), (136, 128, 200)]
ALPHA, BETA = 1.5, -0.25
MARK = 0x11111111


def nvcc(kind: int, include: str, output: Path, *options: str) -> None:
    source = [f"-DKIND={kind}", "-I", include, "-std=c++17", "-arch=sm_80", "-x", "cu", str(HERE / "gemm.cuh")]
    subprocess.run(["nvcc", *options, *source, "-o", str(output)], check=True)


def launches(name: str, library: ctypes.CDLL) -> list[dict[str, Any]]:
    """For every size: grid, block, shared bytes, the parameters in hexadecimal, the places of A, B, C and D in them."""
    real: Any = KINDS[name]
    alpha, beta = (real(v, 0.5) if name == "cgemm" else real(v) for v in (ALPHA, BETA))
    made = []
    for m, n, k in EIGHTS if name == "hgemm" else SIZES:
        sizes, grid, params = (ctypes.c_int * 3)(), (ctypes.c_int * 3)(), ctypes.create_string_buffer(1024)
        strides = (m, k) if name.endswith("tt") else (k, n)
        library.launch(m, n, k, *strides, ctypes.byref(alpha), ctypes.byref(beta), sizes, grid, params)
        content = params.raw[: sizes[0]]
        words = {int.from_bytes(content[i : i + 8], "little"): i for i in range(0, len(content) - 7, 8)}
        made.append({
            "size": [m, n, k], "grid": list(grid), "threads": sizes[2], "shared_bytes": sizes[1],
            "pointers": [words[(MARK << 32) + i] for i in range(1, 5)], "params": content.hex(),
        })  # fmt: skip
    return made


def main() -> int:
    include = sys.argv[1]
    version = (Path(include) / "cutlass" / "version.h").read_text()
    number = ".".join(re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH) (\d+)", version))
    cases: dict[str, Any] = {"cutlass": number, "alpha": ALPHA, "beta": BETA, "launches": {}}
    for kind, name in enumerate(KINDS):
        nvcc(kind, include, HERE / f"{name}.ptx", "-ptx", f"-DKERNEL={name}")
        with tempfile.TemporaryDirectory() as folder:
            adapter = Path(folder) / "adapter.so"
            nvcc(kind, include, adapter, "-shared", "-Xcompiler", "-fPIC")
            cases["launches"][name] = launches(name, ctypes.CDLL(str(adapter)))
        print(name, (HERE / f"{name}.ptx").stat().st_size)
    (HERE / "launches.json").write_text(json.dumps(cases, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
