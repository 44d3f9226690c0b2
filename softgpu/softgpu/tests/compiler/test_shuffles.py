"""shfl in every mode, width and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import run_all


def source_of(mode: str, lane: int, by: int, clamp: int) -> tuple[int, bool]:
    """The lanes that shfl reads: segments of a power of two, and the last lane (for up the first) that it may read."""
    segment = lane & (clamp >> 8 & 31)
    last = segment | (clamp & ~(clamp >> 8) & 31)
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": segment | (by & ~(clamp >> 8) & 31)}[mode]
    fits = source >= last if mode == "up" else source <= last
    return (source, True) if fits else (lane, False)


@pytest.mark.parametrize("given", ["constants", "registers"])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(gpu: Any, mode: str, given: str) -> None:
    """All widths, steps within and beyond them, with and without the answer whether the lane was in range."""
    x = np.random.default_rng(2).integers(0, 1 << 32, 64, np.uint32)
    lines, expected = [], []
    for width in (2, 4, 8, 16, 32):
        for by in (0, 1, 3, 7, 16, 31):
            clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
            name = f"{width}_{by}"
            numbers = f"{by}, {clamp}"
            before = f".reg .b32 %m{name}, %n{name}; .reg .pred %k{name};\n"
            if given == "registers":  # which do not look constant
                before += f"and.b32 %m{name}, {{a}}, 0; or.b32 %n{name}, %m{name}, {clamp};\n"
                before += f"or.b32 %m{name}, %m{name}, {by};\n"
                numbers = f"%m{name}, %n{name}"
            line = f"shfl.sync.{mode}.b32 {{d}}|%k{name}, {{a}}, {numbers}, -1;\n@!%k{name} not.b32 {{d}}, {{d}};"
            lines.append((before + line, "b32"))
            lanes = [source_of(mode, lane, by, clamp) for lane in range(32)]
            rows = [x[warp + source] if fits else ~x[warp + source] for warp in (0, 32) for source, fits in lanes]
            expected.append(np.array(rows, np.uint32))
    for (line, _), got, wanted in zip(lines, run_all(gpu, lines, ("b32",), [x], False), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, line)
