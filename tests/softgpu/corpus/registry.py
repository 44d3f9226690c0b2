"""All cases by name: what the software GPU runs in the test suite, and a GPU by `make gpu`."""

from __future__ import annotations

from tests.softgpu.corpus import (
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
from tests.softgpu.corpus.case import Cases
from tests.softgpu.corpus.cutlass import cases as cutlass
from tests.softgpu.corpus.numba import cases as numba
from tests.softgpu.corpus.other_flags import cases as other_flags
from tests.softgpu.corpus.triton import cases as triton
from tests.softgpu.corpus.triton import network_cases, word_cases
from tests.softgpu.corpus.tvm import cases as tvm

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
