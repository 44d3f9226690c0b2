"""Some of the other cases again, as nvcc makes them for debuggers, and with approximate functions and line numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from softgpu.tests.compiler.corpus import functions, scans, science
from softgpu.tests.compiler.corpus.case import Case, Cases


def again(make: Callable[[], Case], image: str) -> Case:
    return replace(make(), image=f"other_flags/{image}.ptx")


AGAIN = {"scans_debug": scans.CASES, "functions_debug": functions.CASES, "science_fast_math": science.CASES}
CASES: Cases = {
    f"{image}_{name}": partial(again, make, image) for image, cases in AGAIN.items() for name, make in cases.items()
}
