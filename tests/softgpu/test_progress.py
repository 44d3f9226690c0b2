"""Threads that wait for others without a barrier go on once the others have done what they wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRESS = (Path(__file__).parent / "kernels" / "progress.ptx").read_text()


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (3, 64), (40, 96)])
def test_a_lock_that_every_lane_takes(gpu: Any, grid: int, block: int) -> None:
    """They also meet again: the exchange behind the lock is one of whole warps."""
    lock, count, sums = np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(grid * block, np.uint32)
    gpu.run(PROGRESS, "lane_lock", grid, block, lock, count, sums)
    assert (lock[0], count[0]) == (0, grid * block * (block - 1) // 2)
    assert set(sums) == {32}


def test_lanes_one_after_the_other(gpu: Any) -> None:
    turn, order = np.zeros(1, np.uint32), np.zeros(96, np.uint32)
    gpu.run(PROGRESS, "lane_chain", 1, 32, turn, order)
    np.testing.assert_array_equal(order, np.tile(np.arange(31, -1, -1), 3))


def test_a_lane_that_waits_for_the_other_branch(gpu: Any) -> None:
    flag, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    gpu.run(PROGRESS, "branches", 1, 32, flag, out)
    assert out[0] == 7


@pytest.mark.parametrize(("grid", "block"), [(1, 64), (3, 1024)])
def test_warps_that_wait_for_later_ones(gpu: Any, grid: int, block: int) -> None:
    out = np.zeros((grid, block), np.uint32)
    gpu.run(PROGRESS, "warps", grid, block, out)
    warps = block // 32
    np.testing.assert_array_equal(out, np.tile(np.repeat(np.arange(warps, 0, -1), 32), (grid, 1)))


@pytest.mark.parametrize("producer", [32, 1])
@pytest.mark.parametrize("items", [1, 100])
def test_a_queue_between_warps_and_between_lanes(gpu: Any, items: int, producer: int) -> None:
    out = np.zeros(items, np.uint32)
    gpu.run(PROGRESS, "queue", 1, 64, out, np.uint32(items), np.uint32(producer))
    np.testing.assert_array_equal(out, np.arange(items) ** 2)


def test_blocks_that_wait_for_earlier_ones(gpu: Any) -> None:
    ticket, sums, out = np.zeros(1, np.uint32), np.zeros(500, np.uint32), np.zeros((500, 32), np.uint32)
    gpu.run(PROGRESS, "look_back", 500, 32, ticket, sums, out)
    before = np.arange(500) * (np.arange(500) + 1) // 2
    np.testing.assert_array_equal(out, before[:, None] + np.arange(32))


LOADED_NUMBER = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 numbers) {
.reg .u64 %o, %n, %a; .reg .u32 %t, %b, %c, %x; .shared .align 4 .b8 cell[256];
ld.param.u64 %o, [out]; ld.param.u64 %n, [numbers]; mov.u32 %t, %tid.x;
mad.wide.u32 %a, %t, 4, %n; ld.global.u32 %b, [%a]; ld.global.u32 %c, [%a + 256];
shl.b32 %x, %t, 2; st.shared.u32 [%x], %t; bar.sync %b, %c;
xor.b32 %x, %x, 252; ld.shared.u32 %t, [%x]; mov.u32 %x, %tid.x; mad.wide.u32 %a, %x, 4, %o;
st.global.u32 [%a], %t; ret; }
"""


def test_a_barrier_whose_number_each_thread_loads(gpu: Any) -> None:
    out, numbers = np.zeros(64, np.uint32), np.repeat(np.array([3, 64], np.uint32), 64)
    gpu.run(LOADED_NUMBER, "k", 1, 64, out, numbers)
    np.testing.assert_array_equal(out, np.arange(64)[::-1])
