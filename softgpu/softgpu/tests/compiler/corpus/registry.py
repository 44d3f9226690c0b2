"""All cases by name: what the software GPU runs in the test suite, and a GPU by `make gpu`."""

from __future__ import annotations

from softgpu.tests.compiler.corpus import (
    atomics,
    cub,
    functions,
    grids,
    groups,
    library,
    messages,
    reals,
    scans,
    science,
    sorting,
    warps,
    words,
)
from softgpu.tests.compiler.corpus.case import Cases
from softgpu.tests.compiler.corpus.cutlass import cases as cutlass
from softgpu.tests.compiler.corpus.numba import cases as numba
from softgpu.tests.compiler.corpus.other_flags import cases as other_flags
from softgpu.tests.compiler.corpus.triton import cases as triton
from softgpu.tests.compiler.corpus.triton import network_cases, word_cases
from softgpu.tests.compiler.corpus.tvm import cases as tvm

GROUPS: dict[str, Cases] = {
    "scans": scans.CASES,
    "warps": warps.CASES,
    "atomics": atomics.CASES,
    "messages": messages.CASES,
    "reals": reals.CASES,
    "functions": functions.CASES,
    "call_tables": functions.CALL_TABLES,
    "grids": grids.CASES,
    "sorting": sorting.CASES,
    "science": science.CASES,
    "cub": cub.CASES,
    "words": words.CASES,
    "other_flags": other_flags.CASES,
    "groups": groups.CASES,
    "library": library.CASES,
    "cutlass": cutlass.CASES,
    "triton": {**triton.CASES, **network_cases.CASES, **word_cases.CASES},
    "numba": numba.CASES,
    "tvm": tvm.CASES,
}
CASES = {f"{group}-{name}": make for group, cases in GROUPS.items() for name, make in cases.items()}
