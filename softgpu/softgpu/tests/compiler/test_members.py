"""Votes, matches and reductions among parts of a warp: each lane says who its partners are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

TILES = (Path(__file__).parent / "kernels" / "tiles.ptx").read_text()


def expected(tile: list[int], lane: int) -> list[int]:
    x = tile[lane]
    match = sum(1 << i for i, y in enumerate(tile) if y == x)
    same = all(y == x for y in tile)
    return [
        sum(1 << i for i, y in enumerate(tile) if y & 1),
        int(any(y > 6 for y in tile)),
        int(all(y < 7 for y in tile)),
        match,
        (1 << len(tile)) - 1 + 2 if same else 0,
        sum(tile) + 1000 * max(tile) + 100000 * min(tile),
    ]


@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("block", [32, 96])
def test_tiles(gpu: Any, size: int, block: int) -> None:
    values = np.random.default_rng(size).integers(0, 8, 192).astype(np.int32)
    values[32:64] = 5
    values[64:72] = 3
    out = np.zeros((192, 6), np.uint32)
    gpu.run(TILES, f"tiles{size}", 192 // block, block, values, out)
    rows = [expected(values[i // size * size :][:size].tolist(), i % size) for i in range(192)]
    np.testing.assert_array_equal(out, np.array(rows, np.int64).astype(np.uint32))


def test_members_that_differ_in_divergent_code(gpu: Any) -> None:
    values = np.random.default_rng(1).integers(0, 8, 64).astype(np.int32)
    out = np.zeros(64, np.uint32)
    gpu.run(TILES, "parted", 2, 32, values, out)
    for i, x in enumerate(values.tolist()):
        warp = values[i // 32 * 32 :][:32].tolist()
        half = range(i % 32 // 16 * 16, i % 32 // 16 * 16 + 16)
        ballot = sum(1 << k for k in half if warp[k] & 1 and warp[k] > 3)
        assert out[i] == (ballot + sum(y & 1 for y in warp) if x & 1 else 0)


MODES = {
    "vote.sync.all.pred": lambda yes: all(yes),
    "vote.sync.any.pred": lambda yes: any(yes),
    "vote.sync.uni.pred": lambda yes: all(yes) or not any(yes),
}


@pytest.mark.parametrize("mode", MODES)
def test_votes_of_predicates(gpu: Any, mode: str) -> None:
    text = f"""{HEADER}.visible .entry k(.param .u64 in, .param .u64 out) {{
.reg .b32 %t, %x, %m; .reg .b64 %p, %w; .reg .pred %q, %e;
mov.u32 %t, %tid.x;
cvt.u64.u32 %w, %t;
ld.param.u64 %p, [in];
mad.lo.u64 %p, %w, 4, %p;
ld.global.u32 %x, [%p];
setp.ne.u32 %q, %x, 0;
shr.u32 %m, %t, 2;
shl.b32 %m, %m, 2;
shl.b32 %m, 15, %m;
{mode} %e, %q, %m;
selp.u32 %x, 1, 0, %e;
ld.param.u64 %p, [out];
mad.lo.u64 %p, %w, 4, %p;
st.global.u32 [%p], %x;
ret;
}}"""
    values = np.random.default_rng(2).integers(0, 2, 32).astype(np.uint32)
    values[:4], values[4:8] = 0, 1
    out = np.zeros(32, np.uint32)
    gpu.run(text, "k", 1, 32, values, out)
    assert out.tolist() == [MODES[mode](values[i // 4 * 4 :][:4].astype(bool).tolist()) for i in range(32)]
