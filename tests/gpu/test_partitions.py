"""Parts of a device's SMs, on a GPU and on the software GPU: results are the same, and a GPU's kernels stay on them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

import kaas
import softgpu
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.timeouts import TIMEOUT_S

BLOCKS, N = 2048, 1 << 12
WHERE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry where(.param .u64 y)
{
  .reg .b64 %y, %t, %u, %a; .reg .b32 %b, %s; .reg .pred %p;
  ld.param.u64 %y, [y]; mov.u32 %b, %ctaid.x; mov.u32 %s, %smid;
  mul.wide.u32 %a, %b, 4; add.u64 %a, %y, %a; st.global.u32 [%a], %s;
  mov.u64 %t, %globaltimer; add.u64 %t, %t, 20000;
AGAIN:
  mov.u64 %u, %globaltimer; setp.lt.u64 %p, %u, %t; @%p bra AGAIN;
  ret;
}
.visible .entry twice(.param .u64 x, .param .u64 y)
{
  .reg .b64 %x, %y, %o; .reg .b32 %i, %n, %t; .reg .f32 %f;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
  mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %i, %n, %t;
  mul.wide.u32 %o, %i, 4; add.u64 %x, %x, %o; add.u64 %y, %y, %o;
  ld.global.f32 %f, [%x]; add.f32 %f, %f, %f; st.global.f32 [%y], %f;
  ret;
}"""
"""`where` writes the SM of each block, which stays there for 20 microseconds, so that all SMs get blocks."""


@pytest.fixture
def executor(kind: str) -> Iterator[Executor]:
    if kind == "software":
        softgpu.set_model(0, softgpu.Model(sms=64, kernels={"twice": softgpu.Takes(1e-4)}))
    with closing(Executor(open_device(kind), slots=4)) as made:
        yield made
    if kind == "software":
        softgpu.set_model(0, softgpu.Model())


def parted(executor: Executor, share: float) -> int:
    """Return the SMs of a share of the device, in whole partitions; skip on a device that has none."""
    with executor.device.context:
        sms, step = executor.device.partitions.sizes
    if sms == 1:
        pytest.skip("the device cannot be divided")
    return max(1, round(share * sms / step)) * step


def seen(executor: Executor, share: str, sms: int) -> set[int]:
    """Return the SMs on which the blocks of a request of a share have run."""
    y = kaas.Buffer("y", BLOCKS, "uint32")
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(WHERE), "where", BLOCKS, 32, [kaas.Out(y)])], [y])
    return {*executor.run(RunRequest(task, {}, {}, share, share=share, sms=sms)).outputs["y"].tolist()}


def test_results_are_right_on_any_part(executor: Executor) -> None:
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(WHERE), "twice", N // 128, 128, [kaas.In(x), kaas.Out(y)])
    task = kaas.KTask([kernel], [y])

    def repeat(share: int) -> None:
        sms = parted(executor, 0.25) if share else 0
        for number in range(20):
            data = np.full(N, number, np.float32)
            request = RunRequest(task, {"x": InputSource(data)}, {}, f"{share}", share=f"{share}", sms=sms)
            np.testing.assert_array_equal(executor.run(request).outputs["y"], 2 * data)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(repeat, share) for share in range(4)]:
            done.result(TIMEOUT_S)


@pytest.mark.gpu
def test_kernels_run_on_no_other_sms() -> None:
    with closing(Executor(open_device("gpu"), slots=2)) as executor:
        whole = seen(executor, "all", 0)
        for share in (0.125, 0.25, 0.5):
            sms = parted(executor, share)
            assert len(seen(executor, f"{share}", sms)) <= sms < len(whole)


@pytest.mark.gpu
def test_shares_beside_each_other_have_different_sms() -> None:
    with closing(Executor(open_device("gpu"), slots=2)) as executor, ThreadPoolExecutor(2) as threads:
        sms = parted(executor, 0.25)
        for _ in range(20):
            a, b = (threads.submit(seen, executor, share, sms) for share in "ab")
            assert not a.result(TIMEOUT_S) & b.result(TIMEOUT_S)
