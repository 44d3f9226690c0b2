"""kaas.call: values, references, errors, waiting, cancelling, and what happens when processes die."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from kaas.api.attached import current_session
from kaas.wire.status.status import Status
from tests.api.conftest import (
    DEVICE_BYTES,
    N,
    add_task,
    both_task,
    crash_task,
    numbers,
    scale_task,
    spin_task,
)
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("pool")]

LARGE = 2_000_000  # 8 MB of float32
SPIN_STEPS = 1_000_000_000


@pytest.fixture(autouse=True)
def fresh_stats(pool: None) -> None:  # noqa: ARG001 - the pool comes first
    kaas.stats(reset=True)


def until(reached: Callable[[Status], bool]) -> Status:
    """Poll the pool until its status meets a condition."""
    while not reached(status := kaas.status()):
        pass
    return status


def scaled(x: Any, factor: float = 2.0, **options: Any) -> kaas.Future:
    return kaas.call(scale_task(), {"x": x}, scalars={"factor": factor}, **options)


def spin(steps: int = SPIN_STEPS, **options: Any) -> kaas.Future:
    return kaas.call(spin_task(), {}, scalars={"steps": steps}, **options)


@ray.remote(num_cpus=0)
def double(x: Any) -> Any:
    return x * np.float32(2)


@ray.remote(num_cpus=0)
def fail() -> None:
    raise ZeroDivisionError("no such weights")


class Gate:
    """Values that are computed when the test lets them."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def open(self) -> None:
        self.opened.set()

    async def value(self, value: Any) -> Any:
        await self.opened.wait()
        return value


def closed_gate() -> Any:
    gate: Any = ray.remote(Gate)
    return gate.options(max_concurrency=100, num_cpus=0).remote()


# --- values


def test_value_in_value_out() -> None:
    value = scaled(numbers(), 3.0).result(TIMEOUT_S)
    assert (value.dtype, value.shape, value.flags.writeable) == (np.float32, (N,), False)
    np.testing.assert_allclose(value, numbers() * np.float32(3))
    np.testing.assert_array_equal(scaled(numbers().tobytes(), 1.0).result(TIMEOUT_S), numbers())


def test_several_outputs_are_a_named_tuple_in_declared_order() -> None:
    for n in (N, LARGE):
        outputs = kaas.call(both_task(n), {"x": numbers(n)}).result(TIMEOUT_S)
        assert outputs._fields == ("quadruple", "double")
        np.testing.assert_allclose(outputs.quadruple, numbers(n) * 4)
        np.testing.assert_allclose(outputs.double, numbers(n) * 2)


def test_values_may_be_written_to_again_at_once() -> None:
    for n in (N, LARGE):
        x = numbers(n)
        futures = []
        for _ in range(3):
            futures.append(kaas.call(both_task(n), {"x": x}))
            x += 1
        for i, future in enumerate(futures):
            np.testing.assert_allclose(future.result(TIMEOUT_S).double, (numbers(n) + np.float32(i)) * 2, rtol=1e-5)


def test_64_mb_by_value() -> None:
    n = (64 << 20) // 4
    whole = kaas.Buffer("x", n, "float32")
    out = kaas.Buffer("y", N, "float32")
    kernel = scale_task().kernels[0]
    task = kaas.KTask(
        [kaas.Kernel(kernel.library, "scale", 4, 256, [kaas.In(whole), kaas.Out(out), kaas.f32(2), kaas.i32(N)])], [out]
    )
    x = np.zeros(n, np.float32)
    x[:N] = numbers()
    with pytest.raises(errors.RequestTooLarge):  # than these devices; the bytes have arrived there
        kaas.call(task, {"x": x}).result(TIMEOUT_S)
    half = DEVICE_BYTES // 8
    task = kaas.KTask(
        [kaas.Kernel(kernel.library, "scale", 4, 256,
                     [kaas.In(kaas.Buffer("x", half, "float32")), kaas.Out(out), kaas.f32(2), kaas.i32(N)])],
        [out],
    )  # fmt: skip
    for _ in range(3):
        np.testing.assert_array_equal(kaas.call(task, {"x": x[:half]}).result(TIMEOUT_S), numbers() * 2)


def test_many_calls_may_be_outstanding() -> None:
    waiting: deque[tuple[int, kaas.Future]] = deque()
    for i in range(300):
        waiting.append((i, scaled(numbers(), i)))
        if len(waiting) == 64:
            seed, future = waiting.popleft()
            np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() * np.float32(seed))
    for i, future in reversed(waiting):
        np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() * np.float32(i))


# --- references


def test_references_that_are_not_complete_yet() -> None:
    gate = closed_gate()
    late = gate.value.remote(numbers())
    waiting = [scaled(late, i) for i in range(4)]
    np.testing.assert_allclose(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)
    until(lambda status: status.waiting == 4)
    ray.get(gate.open.remote())
    for i, future in enumerate(waiting):
        np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() * np.float32(i))


def test_references_of_tasks_and_invocations() -> None:
    invoked = kaas.invoke(scale_task(), {"x": double.remote(numbers())}, scalars={"factor": 2.0})
    future = kaas.call(add_task(), {"a": invoked, "b": kaas.put(numbers())})
    del invoked
    np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() * 5, rtol=1e-6)


def test_views_of_one_object() -> None:
    for both in (ray.put(numbers(2 * N)), numbers(2 * N)):
        result = kaas.call(add_task(), {"a": kaas.View(both), "b": kaas.View(both, 4 * N)}).result(TIMEOUT_S)
        np.testing.assert_allclose(result, numbers(2 * N)[:N] + numbers(2 * N)[N:])


def test_failed_input_fails_its_call_only() -> None:
    bad, good = scaled(fail.remote()), scaled(numbers())
    with pytest.raises(errors.InputFailed, match="no such weights") as caught:
        bad.result(TIMEOUT_S)
    assert caught.value.buffer == "x"
    assert "ZeroDivisionError: no such weights" in caught.value.reason
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    np.testing.assert_allclose(good.result(TIMEOUT_S), numbers() * 2)


# --- functions


def test_constants_are_cached_on_the_device() -> None:
    add = kaas.register(add_task(), constants={"a": numbers(seed=5)}).options(client="carol")
    for seed in range(10):
        value = add.call(b=numbers(seed=seed)).result(TIMEOUT_S)
        np.testing.assert_allclose(value, numbers(seed=5) + numbers(seed=seed))
    tiers = {tier.tier: tier for tier in kaas.stats().tiers if tier.client == "carol"}
    assert tiers["store"].objects + tiers["device"].objects == 10
    assert tiers["store"].objects <= 2, "one miss on each device at most"


def test_constants_that_are_references_and_late() -> None:
    gate = closed_gate()
    late = gate.value.remote(numbers(2 * N))
    add = kaas.register(add_task(), constants={"a": kaas.View(late, 4 * N), "b": kaas.View(late)})
    future = add.call()
    until(lambda status: status.waiting == 1)
    ray.get(gate.open.remote())
    np.testing.assert_allclose(future.result(TIMEOUT_S), numbers(2 * N)[N:] + numbers(2 * N)[:N])


def test_a_call_of_a_dropped_function_still_gets_its_reply() -> None:
    until(lambda status: status.running == 0)
    spins = [spin(50_000_000) for _ in range(2)]
    future = kaas.register(add_task(), constants={"a": numbers(seed=3)}).call(numbers())
    np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() + numbers(seed=3))
    for spun in spins:
        spun.result(TIMEOUT_S)


def test_options_and_scalars_of_a_function() -> None:
    scale = kaas.register(scale_task())
    for future in (
        scale.call(x=numbers(), factor=4),
        scale.options(scalars={"factor": 4}).call(numbers()),
        kaas.call(scale, {"x": numbers()}, scalars={"factor": 4}),
    ):
        np.testing.assert_allclose(future.result(TIMEOUT_S), numbers() * 4)
    with pytest.raises(errors.MissingScalar):
        scale.call(x=numbers())
    with pytest.raises(errors.InvalidRequest, match="keep"):
        scale.options(keep=True).call(x=numbers(), factor=4)


def test_in_a_ray_task() -> None:
    add = kaas.register(add_task(), constants={"a": numbers(seed=1)})

    @ray.remote(num_cpus=0)
    def use(function: kaas.Function) -> Any:
        return function.call(b=numbers(seed=2)).result(TIMEOUT_S)

    np.testing.assert_allclose(ray.get(use.remote(add)), numbers(seed=1) + numbers(seed=2))


# --- accounting


def test_calls_are_billed_and_measured_as_invocations_are() -> None:
    job = current_session().client
    for client in ("alice", "alice", None):
        kaas.call(
            scale_task(name="counted"), {"x": numbers()}, scalars={"factor": 1}, client=client, profile=True
        ).result(TIMEOUT_S)
    stats = kaas.stats(reset=True)
    counts = {(entry.client, entry.stage): entry.count for entry in stats.stages if entry.function == "counted"}
    for stage in ("queue", "plan", "fetch", "copy_in", "kernels", "copy_out", "total", "request"):
        assert counts["alice", stage] == 2
        assert counts[job, stage] == 1
    assert {(entry.client, entry.outcome) for entry in stats.outcomes} == {("alice", "succeeded"), (job, "succeeded")}
    assert {kernel.symbol for kernel in stats.kernels} == {"scale"}


# --- errors


IN_THE_CALL: dict[str, tuple[Callable[[], Any], type[kaas.KaasError]]] = {
    "missing input": (lambda: kaas.call(add_task(), {"a": numbers()}), errors.MissingInput),
    "extra input": (lambda: kaas.call(add_task(), dict.fromkeys("abz", numbers())), errors.UnexpectedInput),
    "too small": (lambda: scaled(numbers(3)), errors.WrongSize),
    "dtype": (lambda: scaled(np.zeros(N)), errors.WrongDtype),
    "not contiguous": (lambda: scaled(numbers(2 * N)[::2]), errors.NotContiguous),
    "missing scalar": (lambda: kaas.call(scale_task(), {"x": numbers()}), errors.MissingScalar),
    "scalar's type": (lambda: scaled(numbers(), "2"), errors.WrongScalar),  # type: ignore[arg-type]
    "no kTask": (lambda: kaas.call("scale", {}), errors.InvalidRequest),  # type: ignore[arg-type]
    "inputs by position": (lambda: kaas.call(add_task(), [numbers()]), errors.InvalidRequest),  # type: ignore[arg-type]
    "client": (lambda: spin(client=5), errors.InvalidRequest),
    "deadline": (lambda: spin(deadline_s=-1), errors.InvalidRequest),
    "retries": (lambda: spin(retries=-1), errors.InvalidRequest),
}


@pytest.mark.parametrize("name", IN_THE_CALL)
def test_faults_in_the_call(name: str) -> None:
    call, expected = IN_THE_CALL[name]
    with pytest.raises(expected):
        call()


def test_faults_through_the_future() -> None:
    x = numbers(LARGE)
    wrongs: list[tuple[Callable[[], kaas.Future], type[kaas.KaasError], dict[str, Any]]] = [
        (lambda: scaled(ray.put(numbers(N + 1))), errors.WrongSize, {"buffer": "x", "given_bytes": 4 * N + 4}),
        (lambda: scaled(ray.put(np.zeros(N, np.int32))), errors.WrongDtype, {"given": "int32"}),
        (lambda: kaas.call(scale_task(symbol="scales"), {"x": numbers()}, scalars={"factor": 1}),
         errors.UnknownSymbol, {"symbol": "scales"}),
        (lambda: kaas.call(scale_task(LARGE, "scales"), {"x": x}, scalars={"factor": 1}),
         errors.UnknownSymbol, {"symbol": "scales"}),
    ]  # fmt: skip
    for wrong, expected, fields in wrongs:
        future = wrong()
        error = future.exception(TIMEOUT_S)
        assert isinstance(error, expected)
        assert fields.items() <= error.fields.items()
        with pytest.raises(expected):
            future.result()
    np.testing.assert_array_equal(scaled(x[:N]).result(TIMEOUT_S), x[:N] * 2)


def test_a_crashing_kernel() -> None:
    bad = kaas.call(crash_task(), {}, retries=1)
    good = [scaled(numbers(seed=i)) for i in range(20)]
    error = bad.exception(TIMEOUT_S)
    assert type(error) is errors.DeviceLost
    assert error.fields["code_name"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    for i, future in enumerate(good):
        np.testing.assert_array_equal(future.result(TIMEOUT_S), numbers(seed=i) * 2)


# --- waiting


def test_await_and_gather() -> None:
    async def both() -> list[Any]:
        function = kaas.register(scale_task())
        alone = await function.call(numbers(), factor=2)
        return [alone, *await asyncio.gather(*(function.call(numbers(), factor=i) for i in range(8)))]

    for _ in range(2):  # each in an event loop of its own
        for factor, value in zip((2, *range(8)), asyncio.run(both()), strict=True):
            np.testing.assert_allclose(value, numbers() * np.float32(factor))


def test_callbacks() -> None:
    heard: queue.Queue[kaas.Future] = queue.Queue()
    future = scaled(numbers())
    future.add_done_callback(heard.put)
    assert heard.get(timeout=TIMEOUT_S) is future
    np.testing.assert_allclose(future.result(0), numbers() * 2)


def test_many_threads() -> None:
    def work(thread: int) -> None:
        for i in range(20):
            np.testing.assert_allclose(scaled(numbers(), i).result(TIMEOUT_S), numbers() * np.float32(i))
            if thread % 2:
                value = kaas.call(both_task(LARGE // 8), {"x": numbers(LARGE // 8)}).result(TIMEOUT_S)
                np.testing.assert_allclose(value.double, numbers(LARGE // 8) * 2)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, thread) for thread in range(8)]:
            done.result()


def test_the_timeout_of_a_wait_does_not_end_the_call() -> None:
    future = spin()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert not future.done()
    assert future.result(TIMEOUT_S) is not None
    assert future.done()


def test_deadline() -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        spin(deadline_s=0.2).result(TIMEOUT_S)
    assert caught.value.deadline_s == 0.2 <= caught.value.waited_s


def test_cancel_queued_and_running() -> None:
    until(lambda status: status.running == 0)
    running = [spin(), spin()]
    until(lambda status: status.running == 2)
    queued, other = spin(), kaas.invoke(spin_task(), {}, scalars={"steps": 3})
    until(lambda status: status.queued == 2)
    for future in (queued, running[0]):
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result()
    until(lambda status: (status.queued, status.running) == (1, 2))
    assert ray.get(other, timeout=TIMEOUT_S) == spin(3).result(TIMEOUT_S)
    running[1].result(TIMEOUT_S)
    assert not running[1].cancel()
    assert {"cancelled", "succeeded"} == {entry.outcome for entry in kaas.stats().outcomes}


@pytest.mark.full
def test_a_timeout_of_asyncio_cancels_the_call() -> None:
    until(lambda status: status.running == 0)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(spin(), 0.2)

    asyncio.run(give_up())
    until(lambda status: status.running == 0)
    assert {entry.outcome for entry in kaas.stats().outcomes} == {"cancelled"}


@pytest.mark.full
def test_ray_cancels_invocations_in_parallel_with_calls() -> None:
    until(lambda status: status.running == 0)
    running = [spin(), spin()]
    until(lambda status: status.running == 2)
    invoked = kaas.invoke(spin_task(), {}, scalars={"steps": 3})
    ray.cancel(invoked)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(invoked, timeout=TIMEOUT_S)
    for future in running:
        future.result(TIMEOUT_S)


# --- processes that die


@pytest.mark.full
def test_a_killed_executor() -> None:
    until(lambda status: status.running == 0)
    again, once = spin(), spin(retries=0)
    status = until(lambda status: status.running == 2)
    for device in status.devices:
        assert device.info is not None
        os.kill(device.info.pid, signal.SIGKILL)
    with pytest.raises(errors.ExecutorDied):
        once.result(TIMEOUT_S)
    assert again.result(TIMEOUT_S) == spin().result(TIMEOUT_S)


@pytest.mark.full
def test_a_killed_pool() -> None:
    add = kaas.register(add_task(), constants={"a": numbers(seed=1)})
    add.call(numbers()).result(TIMEOUT_S)
    until(lambda status: status.running == 0)
    pid = kaas.status().pid
    ref = ray.put(numbers(seed=2))
    spins = [spin(30_000_000) for _ in range(10)]
    large = kaas.call(both_task(LARGE), {"x": numbers(LARGE)})
    sums = [add.call(b) for b in (ref, numbers(seed=2))]
    cancelled = add.call(numbers())
    assert cancelled.cancel()
    os.kill(pid, signal.SIGKILL)
    after = add.call(ref)
    assert len({int(future.result(TIMEOUT_S)[0]) for future in spins}) == 1
    np.testing.assert_allclose(large.result(TIMEOUT_S).double, numbers(LARGE) * 2)
    for future in (*sums, after):
        np.testing.assert_allclose(future.result(TIMEOUT_S), numbers(seed=1) + numbers(seed=2))
    assert kaas.status().pid != pid


@pytest.mark.full
def test_shutdown_ends_calls_that_wait(start: Callable[..., bool]) -> None:
    until(lambda status: status.running == 0)
    spins = [spin() for _ in range(4)]
    until(lambda status: status.running == 2)
    answered = scaled(numbers(), deadline_s=1e-6)
    add = kaas.register(add_task(), constants={"a": numbers(seed=1)})
    kaas.shutdown()
    for future in spins:
        with pytest.raises(errors.PoolStopped):
            future.result(TIMEOUT_S)
    with pytest.raises((errors.DeadlineExceeded, errors.PoolStopped)):
        answered.result(TIMEOUT_S)
    with pytest.raises(errors.NotInitialized):
        scaled(numbers())
    with pytest.raises(errors.NotInitialized):
        add.call(numbers())
    start(devices=[kaas.Device("software", DEVICE_BYTES)] * 2)
    np.testing.assert_allclose(add.call(numbers()).result(TIMEOUT_S), numbers() + numbers(seed=1))
