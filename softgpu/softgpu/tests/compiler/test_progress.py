"""Threads that wait for others without a barrier continue once the others have reached the awaited state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER
from tests.timeouts import TIMEOUT_S

PROGRESS = (Path(__file__).parent / "kernels" / "progress.ptx").read_text()


def run_until(gpu: Any, stop: np.ndarray, text: str, grid: int, block: int, *arguments: np.ndarray) -> None:
    """Run the kernel `k`; end it by `stop` if it waits for ever."""
    timer = threading.Timer(TIMEOUT_S, stop.fill, (1,))
    timer.start()
    try:
        gpu.run(text, "k", grid, block, *arguments, stop=stop)
    finally:
        timer.cancel()


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (3, 64), (40, 96)])
def test_a_lock_that_every_lane_takes(gpu: Any, grid: int, block: int) -> None:
    """They also meet again: the exchange behind the lock is one of whole warps."""
    lock, count, sums = np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(grid * block, np.uint32)
    gpu.run(PROGRESS, "lane_lock", grid, block, lock, count, sums)
    assert (lock[0], count[0]) == (0, grid * block * (block - 1) // 2)
    assert set(sums) == {32}


def test_a_lock_that_groups_of_lanes_take(gpu: Any) -> None:
    """In the loop that waits for the lock the lanes of a group meet; the lock is released behind the loop."""
    text = f"""{HEADER}
.visible .entry k(.param .u64 lock, .param .u64 count) {{
.reg .b32 %t, %lane, %mask, %got, %first, %v; .reg .b64 %l, %c; .reg .pred %leads, %taken;
ld.param.u64 %l, [lock]; ld.param.u64 %c, [count];
mov.u32 %t, %tid.x; and.b32 %lane, %t, 31; and.b32 %first, %lane, 24;
mov.b32 %mask, 255; shl.b32 %mask, %mask, %first;
and.b32 %v, %t, 7; setp.eq.u32 %leads, %v, 0;
again: mov.u32 %got, 1;
@%leads atom.global.cas.b32 %got, [%l], 0, 1;
shfl.sync.idx.b32 %got, %got, %first, 31, %mask;
setp.ne.u32 %taken, %got, 0;
@%taken bra again;
@%leads ld.volatile.global.u32 %v, [%c];
@%leads add.u32 %v, %v, 1;
@%leads st.volatile.global.u32 [%c], %v;
@%leads atom.global.exch.b32 %got, [%l], 0;
ret;
}}"""
    lock, count, stop = np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    run_until(gpu, stop, text, 3, 64, lock, count)
    assert (lock[0], count[0]) == (0, 3 * 64 // 8)


def test_lanes_one_after_the_other(gpu: Any) -> None:
    turn, order = np.zeros(1, np.uint32), np.zeros(96, np.uint32)
    gpu.run(PROGRESS, "lane_chain", 1, 32, turn, order)
    np.testing.assert_array_equal(order, np.tile(np.arange(31, -1, -1), 3))


def test_a_lane_that_waits_for_the_other_branch(gpu: Any) -> None:
    flag, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    gpu.run(PROGRESS, "branches", 1, 32, flag, out)
    assert out[0] == 7


@pytest.mark.parametrize(
    ("takes", "releases"),
    [
        pytest.param(  # a bit of a word that others change too
            """mov.u32 %old, 0;
again: and.b32 %free, %old, 0xfffffffe; or.b32 %held, %free, 1;
atom.global.cas.b32 %old, [%l], %free, %held;
setp.ne.u32 %waits, %old, %free; @%waits bra again;""",
            "atom.global.and.b32 %old, [%l], 0xfffffffe;",
            id="the compared value is made of the last result",
        ),
        pytest.param(  # writers of a lock for readers and writers
            """mov.u32 %old, 0;
again: and.b32 %held, %old, 1; setp.ne.u32 %waits, %held, 0;
mov.u32 %free, %old; @%waits mov.u32 %free, 0; or.b32 %held, %free, 1;
atom.global.cas.b32 %old, [%l], %free, %held;
setp.ne.u32 %waits, %old, %free; @%waits bra again;""",
            "atom.global.and.b32 %old, [%l], 0xfffffffe;",
            id="the compared value is the last result or a constant",
        ),
        pytest.param(
            """mov.u32 %held, 0;
again: atom.global.exch.b32 %old, [%l], 1;
setp.ne.u32 %waits, %old, 0; @%waits bra missed;
mov.u32 %held, 1; bra.uni tried;
missed: mov.u32 %held, 0;
tried: setp.eq.u32 %waits, %held, 0; @%waits bra again;""",
            "atom.global.exch.b32 %old, [%l], 0;",
            id="a branch about the result sets the flag that ends the loop",
        ),
    ],
)
def test_a_lock_that_lanes_try_in_other_ways(gpu: Any, takes: str, releases: str) -> None:
    text = f"""{HEADER}
.visible .entry k(.param .u64 lock, .param .u64 count) {{
.reg .b32 %old, %free, %held, %v; .reg .b64 %l, %c; .reg .pred %waits;
ld.param.u64 %l, [lock]; ld.param.u64 %c, [count];
{takes}
ld.volatile.global.u32 %v, [%c]; add.u32 %v, %v, 1; st.volatile.global.u32 [%c], %v;
{releases}
ret;
}}"""
    lock, count, stop = np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    run_until(gpu, stop, text, 3, 64, lock, count)
    assert (lock[0], count[0]) == (0, 3 * 64)


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


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (5, 64), (64, 32), (300, 1)])
def test_blocks_that_wait_for_later_ones(gpu: Any, grid: int, block: int) -> None:
    """In a cooperative launch, whose blocks are under way together, each with shared memory of its own."""
    ready, out = np.zeros(grid + 1, np.uint32), np.zeros((grid, block), np.uint32)
    ready[grid] = 1
    gpu.run(PROGRESS, "look_ahead", grid, block, ready, out, cooperative=True)
    np.testing.assert_array_equal(ready, np.arange(grid + 1, 0, -1))
    np.testing.assert_array_equal(out, np.repeat(np.arange(grid, 0, -1)[:, None] * 10 + 1, block, 1))


@pytest.mark.parametrize("space", [".local", ""])
def test_the_flag_of_a_waiting_loop_may_pass_through_local_memory(gpu: Any, space: str) -> None:
    """As in code that is not optimised."""
    to_generic = "" if space else "cvta.local.u64 %l, %l;"
    text = f"""{HEADER}
.visible .entry k(.param .u64 flag, .param .u64 out) {{
.reg .b32 %t, %v, %s; .reg .b64 %f, %o, %l; .reg .pred %p, %q;
.local .align 4 .b8 stack[4];
mov.u64 %l, stack; {to_generic}
mov.u32 %t, %tid.x; ld.param.u64 %f, [flag]; ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o;
setp.eq.u32 %p, %t, 31;
@%p bra set;
wait: ld.volatile.global.u32 %v, [%f];
st{space}.u32 [%l], %v;
ld{space}.u32 %s, [%l];
setp.eq.u32 %q, %s, 0;
@%q bra wait;
bra end;
set: st.volatile.global.u32 [%f], 7;
end: ld.volatile.global.u32 %v, [%f];
st.global.u32 [%o], %v;
ret;
}}"""
    flag, out, stop = np.zeros(1, np.uint32), np.zeros(32, np.uint32), np.zeros(1, np.uint32)
    run_until(gpu, stop, text, 1, 32, flag, out)
    assert set(out) == {7}


def test_a_barrier_whose_number_is_loaded(gpu: Any) -> None:
    """Each pair of warps has its own; lanes that have ended load no number."""
    text = f"""{HEADER}
.visible .entry k(.param .u64 numbers, .param .u64 out) {{
.reg .b32 %t, %n, %x, %s, %l; .reg .b64 %f, %o; .reg .pred %p;
.shared .align 4 .b8 tile[1024];
mov.u32 %t, %tid.x; ld.param.u64 %f, [numbers]; mad.wide.u32 %f, %t, 4, %f; ld.global.u32 %n, [%f];
mov.u32 %l, %laneid; setp.lt.u32 %p, %l, 3;
@%p ret;
mov.u32 %s, tile; mad.lo.u32 %s, %t, 4, %s; st.shared.u32 [%s], %t;
bar.sync %n, 64;
mov.u32 %s, tile; xor.b32 %x, %t, 32; mad.lo.u32 %s, %x, 4, %s; ld.shared.u32 %x, [%s];
ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %x;
ret;
}}"""
    threads = np.arange(256, dtype=np.uint32)
    running = threads % 32 >= 3
    numbers = np.where(running, threads // 64 + 1, 99).astype(np.uint32)
    out = np.zeros(256, np.uint32)
    gpu.run(text, "k", 1, 256, numbers, out)
    np.testing.assert_array_equal(out, np.where(running, threads ^ 32, 0))
