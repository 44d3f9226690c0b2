"""A promise of latency in a pool on Ray: the function is measured, granted a part of a device, and given it again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kaas
from softgpu import Model, Takes
from tests.outcomes.test_shares import BLOCKS, SMS, task_of
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray


def test_a_function_is_measured_and_granted_a_part_that_keeps_its_promise(start: Callable[..., bool]) -> None:
    model = Model(sms=SMS, blocks_per_sm=1, kernels={name: Takes(0.004) for name in "fg"})
    config = kaas.Config(devices=(kaas.Device(model=model),), slots=4, policy="fcfs")
    start(config=config, name="promises-on-ray")
    function = kaas.register(task_of("f"), share="auto", slo_s=10.0)
    for _ in range(40):
        assert int(np.asarray(function.call().result(TIMEOUT_S))[0]) == 0
    (share,) = kaas.status().shares
    assert share.promise is not None
    (((_, sms, _),),) = (share.promise.instances,)
    assert sms <= BLOCKS / SMS, "the function fills a quarter: more is of no use"
    assert (share.promise.kept, share.promise.late, share.promise.refused) == (40, 0, 0)
    kaas.set_share(function, None)
    assert int(np.asarray(function.call().result(TIMEOUT_S))[0]) == 0
    assert kaas.status().shares == ()
