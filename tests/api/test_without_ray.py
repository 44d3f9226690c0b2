"""A pool of plain processes: its calls and objects, and that none of it needs Ray."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import kaas
import kaas.api.program
from kaas import errors
from kaas.api.attached import current_session
from kaas.wire.connections.stream import MessageStream
from tests.api.conftest import add_task, both_task, crash_task, numbers, scale_task
from tests.api.without_ray import (
    DEVICES,
    LARGE_DEVICE,
    another,
    executors,
    pool,
    program,
    runtime,
    scaled,
    spin,
    until,
)
from tests.timeouts import TIMEOUT_S

__all__ = ["another", "pool", "runtime"]

pytestmark = pytest.mark.processes


@pytest.mark.usefixtures("pool")
class TestCalls:
    def test_value_in_value_out(self) -> None:
        np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)
        outputs = kaas.call(both_task(), {"x": numbers()}).result(TIMEOUT_S)
        np.testing.assert_array_equal(outputs.quadruple, numbers() * 4)

    def test_large_values(self) -> None:
        n = 4 << 20
        value = kaas.call(scale_task(n), {"x": numbers(n)}, scalars={"factor": 3}).result(TIMEOUT_S)
        np.testing.assert_array_equal(value, numbers(n) * 3)

    def test_objects_that_the_pool_holds(self) -> None:
        held = kaas.put(numbers())
        kaas.stats(reset=True)
        for _ in range(5):
            np.testing.assert_array_equal(scaled(held).result(TIMEOUT_S), numbers() * 2)
        stores = [tier for tier in kaas.stats().tiers if tier.tier == "store"]
        assert 1 <= sum(tier.objects for tier in stores) <= len(DEVICES)
        part = kaas.View(kaas.put(np.concatenate([numbers(), numbers(seed=1)])), numbers().nbytes)
        np.testing.assert_array_equal(scaled(part).result(TIMEOUT_S), numbers(seed=1) * 2)

    def test_dtype_and_size_of_an_object_are_checked_at_once(self) -> None:
        held = kaas.put(numbers().astype(np.int32))
        with pytest.raises(errors.WrongDtype):
            scaled(held)
        with pytest.raises(errors.WrongSize):
            scaled(kaas.put(numbers(10)))
        with pytest.raises(errors.WrongDtype):
            kaas.register(scale_task(), {"x": held})
        with pytest.raises(errors.InvalidRequest, match="this process only"):
            pickle.dumps(held)

    def test_constants(self) -> None:
        shared = kaas.put(numbers(seed=1))
        function = kaas.register(add_task(), {"a": shared, "b": numbers(seed=2)})
        kaas.prefetch(function).result(TIMEOUT_S)
        kaas.stats(reset=True)
        np.testing.assert_array_equal(function.call().result(TIMEOUT_S), numbers(seed=1) + numbers(seed=2))
        assert kaas.stats().hit_rate() == 1.0

    def test_many_constants(self) -> None:
        n, count = 1000, 100
        parts = {f"x{each}": kaas.Buffer(f"x{each}", n, "float32") for each in range(count)}
        sums = [kaas.Buffer(f"sum{each}", n, "float32") for each in range(count - 1)]
        kernel = add_task(n).kernels[0]
        first, kernels = parts["x0"], list[kaas.Kernel]()
        for each, total in enumerate(sums):
            operands = kaas.In(first), kaas.In(parts[f"x{each + 1}"]), kaas.Out(total), kaas.i32(n)
            kernels.append(kaas.Kernel(kernel.library, "add", kernel.grid, kernel.block, operands))
            first = total
        constants = {name: np.full(n, each, np.float32) for each, name in enumerate(parts)}
        function = kaas.register(kaas.KTask(kernels, [sums[-1]]), constants)
        np.testing.assert_array_equal(function.call().result(TIMEOUT_S), np.full(n, sum(range(count)), np.float32))

    def test_deadline_and_cancel(self) -> None:
        busy = [spin() for _ in DEVICES]
        until(lambda status: status.running == len(DEVICES))
        waiting = scaled(numbers(), deadline_s=0.05)
        assert isinstance(waiting.exception(TIMEOUT_S), errors.DeadlineExceeded)
        for call in busy:
            assert call.cancel()
            with pytest.raises(CancelledError):
                call.result()
        np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)

    def test_clients_are_counted_separately(self) -> None:
        kaas.stats(reset=True)
        scaled(numbers(), client="ann").result(TIMEOUT_S)
        scaled(numbers()).result(TIMEOUT_S)
        assert {outcome.client for outcome in kaas.stats().outcomes} == {"ann", current_session().client}

    def test_functions_that_need_ray_are_refused(self) -> None:
        function = kaas.register(scale_task())
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1})
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            function.remote(x=numbers(), factor=1)
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            kaas.etask(numbers).remote()

    def test_invalid_arguments_are_refused_at_once(self) -> None:
        for name in ("", 3):
            with pytest.raises(errors.InvalidConfig, match="a pool has a name"):
                kaas.init(ray=False, name=name)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match=r"kaas\.pardon takes a KTask or a Function"):
            kaas.pardon("scale")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="this process only"):
            pickle.dumps(scaled(numbers()))

    def test_init_again_compares(self) -> None:
        assert not kaas.init(ray=False)
        assert not kaas.init(ray=False, devices=DEVICES)
        for wanted, differs in (({"slots": 2}, "slots"), ({"devices": DEVICES[:1]}, "devices")):
            with pytest.raises(errors.ConfigMismatch) as refused:
                kaas.init(ray=False, config=kaas.Config(**wanted))
            assert refused.value.differences == (differs,)
        with pytest.raises(errors.ConfigMismatch) as refused:
            kaas.init()
        assert refused.value.differences == ("ray",)
        with pytest.raises(errors.InvalidConfig, match="this machine"):
            kaas.init("auto", ray=False)


def test_an_executor_that_is_killed_is_replaced(pool: None) -> None:  # noqa: ARG001
    before = executors()
    calls = [spin() for _ in DEVICES]
    until(lambda status: status.running == len(DEVICES))
    os.kill(before[0], signal.SIGKILL)
    assert len({int(call.result(TIMEOUT_S)[0]) for call in calls}) == 1
    after = executors()
    assert before[0] not in after
    assert before[1] in after


def test_a_pin_outlives_its_executor(pool: None) -> None:  # noqa: ARG001
    kaas.pin(kaas.put(numbers(seed=7)), device=0)  # only the pin refers to it
    function = kaas.register(add_task(), {"a": numbers(seed=8)})
    kaas.pin(function, device=0)
    os.kill(executors()[0], signal.SIGKILL)
    until(lambda status: [pin.state for pin in status.devices[0].pins] == ["loading"] * 2)
    until(lambda status: [pin.state for pin in status.devices[0].pins] == ["held"] * 2)
    kaas.unpin()
    kaas.flush()
    assert kaas.status().devices[0].pins == ()


def test_a_function_that_ends_devices_is_put_in_quarantine(pool: None) -> None:  # noqa: ARG001
    task = crash_task()
    for _ in range(2):
        error = kaas.call(task, {}).exception(TIMEOUT_S)
        assert isinstance(error, errors.DeviceLost)
    assert isinstance(kaas.call(task, {}).exception(TIMEOUT_S), errors.Quarantined)
    assert [held.faults for held in kaas.status().quarantined] == [2]
    assert kaas.pardon(task)
    assert not kaas.pardon(task)


NEVER_RAY = """
import asyncio, sys
import kaas
from tests.api.conftest import add_task, numbers, scale_task
from tests.api.models import adder, inputs

async def main():
    return await kaas.call(scale_task(), {"x": numbers()}, scalars={"factor": 2})

assert kaas.init(ray=False, devices=[kaas.Device()], name="never")
assert (asyncio.run(main()) == numbers() * 2).all()
function = kaas.register(add_task(), {"a": kaas.put(numbers())})
kaas.prefetch(function).result()
kaas.pin(function)
assert (function.call(b=numbers()).result() == numbers() * 2).all()
kaas.unpin(), kaas.flush()
adder(1, 8).register().call(**inputs(8)).result()
kaas.status(), kaas.stats(), kaas.pardon(function)
kaas.shutdown()
assert "ray" not in sys.modules, "ray"
"""


def test_a_program_without_ray_never_imports_ray() -> None:
    other = program(NEVER_RAY)
    other.communicate()
    assert other.returncode == 0


@pytest.mark.full
def test_constants_of_100_mb_are_held_once_in_the_pool(another: Callable[..., bool]) -> None:
    another(devices=[LARGE_DEVICE], config=kaas.Config(whole_object_bytes=128 << 20))
    constant = numbers(25 << 20)
    offset = 20 << 20
    parts = {"x": kaas.View(constant, offset * constant.itemsize)}
    functions = [kaas.register(scale_task(), parts).options(scalars={"factor": 2}) for _ in range(2)]  # one content
    for function in functions:
        value = function.call().result(TIMEOUT_S)
        np.testing.assert_array_equal(value, constant[offset : offset + len(value)] * 2)
    assert sum(tier.nbytes for tier in kaas.stats().tiers if tier.tier == "store") == constant.nbytes
    (executor,) = executors()
    os.kill(executor, signal.SIGKILL)
    np.testing.assert_array_equal(functions[0].call().result(TIMEOUT_S), value)


@pytest.mark.parametrize("where", ["send", "read"])
def test_ctrl_c_during_a_call_leaves_the_pool_to_the_next_call(
    where: str, another: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message may be cut in the middle, so that connection ends; the next call makes another."""

    def interrupted(*_: Any) -> Any:
        setattr(MessageStream, where, original)
        raise KeyboardInterrupt

    def call() -> Any:
        return kaas.call(task, {"x": numbers()}, scalars={"factor": 3}).result(TIMEOUT_S)

    original, task = getattr(MessageStream, where), scale_task()
    assert another(name="interrupted")
    expected = call()
    monkeypatch.setattr(MessageStream, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    for _ in range(3):
        np.testing.assert_array_equal(call(), expected)
