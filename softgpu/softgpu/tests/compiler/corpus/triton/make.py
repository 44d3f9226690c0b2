"""`python -m softgpu.tests.compiler.corpus.triton.make`: PTX of the kernels, without a GPU. Needs Triton."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # it would tell paths of this machine

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from softgpu.tests.compiler.corpus.triton import kernels, networks, words

HERE = Path(__file__).parent
TARGET = GPUTarget("cuda", 80, 32)
MODULES = (kernels, networks, words)
# kernel: types of its arguments (and what divides them), constants, warps
WANTED: dict[str, tuple[str, dict[str, int], int]] = {
    "softmax": ("*fp32 *fp32 i32 i32", {"BLOCK": 256}, 4),
    "layer_norm": ("*fp16 *fp16 *fp32 *fp32 *fp32 *fp32 i32 fp32", {"BLOCK": 128}, 2),
    "matmul": ("*fp32 *fp32 *fp32 i32 i32 i32", {"M": 32, "N": 32, "K": 16}, 4),
    "gelu": ("*fp32 *fp32 *fp32 i32 i32", {"BLOCK": 256}, 4),
    "reductions": ("*i32 *i32 *i32 *i32 *i32 i32 i32", {"R": 16, "C": 64}, 4),
    "scan_and_sort": ("*i32 *i32 *i32 i32", {"BLOCK": 128}, 4),
    "histogram": ("*i32 *i32 *i32 i32", {"BLOCK": 128}, 4),
    "attention": ("*fp32 *fp32 *fp32 *fp32 i32 fp32", {"M": 16, "N": 16, "D": 32}, 4),
    "doubles": ("*fp64 *fp64 i32", {"BLOCK": 128}, 1),
    "layouts": ("*i32 " * 8, {"BLOCK": 64}, 2),
    "mixed": ("*fp16 *fp16 *fp16 *bf16 *i8 i32", {"BLOCK": 256}, 4),
    "softmax_in_turn": ("*fp16 *fp16 i32 i32 i32", {"BLOCK": 128}, 1),
    "layer_norm_backward": ("*fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *i32 i32", {"GROUPS": 4, "BLOCK": 128}, 4),
    "grouped_matmul": ("*fp32 *fp32 *fp32 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 16, "GROUP": 2}, 2),
    "matmul_sums": ("*fp16 *fp16 *fp16 i32 i32", {"K": 32, "BM": 8, "BN": 8}, 4),
    "causal_attention": ("*fp32 *fp32 *fp32 *fp32 i32 fp32", {"HEAD": 16, "BM": 32, "BN": 16}, 8),
    "activations": ("*fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 i32", {"BLOCK": 128}, 4),
    "cross_entropy": ("*fp64 *i32 *fp64 *fp64 i32 fp64", {"BLOCK": 64}, 2),
    "add_aligned": ("*fp32:16 *fp32:16 *fp32:16 i32:16", {"BLOCK": 512}, 4),
    "narrow": ("*fp32 *fp16 *bf16 *fp32 i32", {"BLOCK": 256}, 2),
    "row_reductions": ("*i32 *i64 *i32 *i32 *i32 *i32 i32", {"ROWS": 8, "COLUMNS": 64}, 4),
    "scans": ("*fp32 *fp32 *i32 *fp32 *i32 *i32", {"N": 256}, 4),
    "block_histogram": ("*i32 *i32 *fp32 *fp16 i32", {"BINS": 32, "BLOCK": 256}, 4),
    "atomics": ("*fp32 *fp32 *fp32 *i64 *i32 *i32 i32", {"BLOCK": 128}, 4),
    "shuffles": ("*fp32 *i32 *fp32 *fp32 *fp32 *fp32", {"ROWS": 8, "COLUMNS": 32}, 1),
    "integers": ("*i32 *i32 *i32 *i32 *u32 *i32 *i64 i32", {"BLOCK": 128}, 4),
    "scalars": ("*fp32 *fp32 *fp32 i32", {}, 1),
    "packed_bytes": ("*u8 *u8 i32", {"BLOCK": 512}, 4),
}


def compiled(name: str, types: str, constants: dict[str, int], warps: int) -> dict[str, Any]:
    """Writes the PTX; gives what a launch has to know. One stage, because more of them want asynchronous copies."""
    (function,) = (vars(module)[name] for module in MODULES if name in vars(module))
    names, kinds = function.arg_names, [kind.partition(":") for kind in types.split()]
    signature = dict(zip(names, [kind for kind, *_ in kinds] + ["constexpr"] * len(constants), strict=True))
    aligned = {(i,): [["tt.divisibility", int(by)]] for i, (_, _, by) in enumerate(kinds) if by}
    constexprs = {(names.index(key),): value for key, value in constants.items()}
    source = ASTSource(function, signature, constexprs, aligned)
    made = triton.compile(source, target=TARGET, options={"num_warps": warps, "num_stages": 1})
    (HERE / f"{name}.ptx").write_text(made.asm["ptx"])
    return {"threads": 32 * warps, "shared_bytes": made.metadata.shared, "constants": constants}


def main() -> int:
    about: dict[str, Any] = {"triton": triton.__version__, "kernels": {}}
    for name, wanted in WANTED.items():
        about["kernels"][name] = compiled(name, *wanted)
        print(name, (HERE / f"{name}.ptx").stat().st_size, about["kernels"][name])
    (HERE / "kernels.json").write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
