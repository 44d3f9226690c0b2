"""kTasks through Ray: values, references, faults, and what happens when processes die."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import TaskCancelledError

import kaas
from kaas import errors
from kaas.api.attached import current_session
from kaas.code.kernels import library
from kaas.wire.status.status import Status
from tests.api.conftest import (
    DEVICE_BYTES,
    STEPS,
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


@ray.remote
def double(x: Any) -> Any:
    return x * np.float32(2)


@ray.remote
def fail() -> None:
    raise ZeroDivisionError("no such weights")


# --- values


def test_value_in_value_out() -> None:
    x = numbers()
    result = ray.get(kaas.invoke(scale_task(), {"x": x}, scalars={"factor": 3.0}))
    assert (result.dtype, result.shape) == (np.float32, (N,))
    np.testing.assert_allclose(result, x * np.float32(3))


def test_bytes_and_scalar_outputs() -> None:
    expected = np.uint32(1)
    for _ in range(3):
        expected = np.uint32((int(expected) ** 2 + 1013904223) % 2**32)
    assert ray.get(kaas.invoke(spin_task(), {}, scalars={"steps": 3})) == [expected]
    x = numbers()
    result = ray.get(kaas.invoke(scale_task(), {"x": x.tobytes()}, scalars={"factor": 1.0}))
    np.testing.assert_array_equal(result, x)


def test_several_outputs_are_a_named_tuple_in_declared_order() -> None:
    x = numbers()
    refs = kaas.invoke(both_task(), {"x": x})
    assert refs._fields == ("quadruple", "double")
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    np.testing.assert_allclose(ray.get(refs.quadruple), x * 4)
    np.testing.assert_allclose(ray.get(refs.double), x * 2)


def test_large_values_and_outputs() -> None:
    x = numbers(LARGE)
    for given in (x, ray.put(x)):
        refs = kaas.invoke(both_task(LARGE), {"x": given})
        quadruple, twice = ray.get(list(refs))
        np.testing.assert_allclose(quadruple, x * 4)
        np.testing.assert_allclose(twice, x * 2)
    ref = kaas.invoke(scale_task(LARGE), {"x": refs.double}, scalars={"factor": 0.5})
    np.testing.assert_allclose(ray.get(double.remote(ref)), x * 2)


def test_many_at_once_each_with_its_own_result() -> None:
    refs = [kaas.invoke(scale_task(), {"x": numbers(seed=i)}, scalars={"factor": i}) for i in range(100)]
    for i, result in enumerate(ray.get(refs)):
        np.testing.assert_allclose(result, numbers(seed=i) * np.float32(i))


def test_code_that_is_only_named() -> None:
    """No code is sent: the executor's kaas provides its own kernels."""
    named = kaas.Library.provided("kaas", "nearest_neighbours", version("kaas-gpu"))
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    kernel = named.kernel("vadd", grid=4, block=256, args=[kaas.InOut(y), kaas.In(x), kaas.u32(N)])
    task = kaas.KTask([kernel], [y])
    assert len(pickle.dumps(task)) < 1000 < library("nearest_neighbours").nbytes
    result = ray.get(kaas.invoke(task, {"x": numbers(), "y": numbers(seed=1)}))
    np.testing.assert_array_equal(result, numbers() + numbers(seed=1))


def test_code_without_a_provider_is_an_error() -> None:
    named = kaas.Library.provided("nobody", "vadd", "1")
    x = kaas.Buffer("x", N, "float32")
    task = kaas.KTask([kaas.Kernel(named, "vadd", 1, 256, [kaas.Out(x)])], [x])
    with pytest.raises(errors.MissingProvider, match="'nobody'") as caught:
        ray.get(kaas.invoke(task, {}))
    error: Any = caught.value
    assert (error.provider, error.name, error.version) == ("nobody", "vadd", "1")
    assert (error.kernel, error.task, "kaas" in error.installed) == ("vadd", task.label, True)


# --- references


def test_references_compose_with_ray() -> None:
    task = scale_task()
    ref = kaas.invoke(task, {"x": numbers()}, scalars={"factor": 2.0})
    ready, rest = ray.wait([ref], timeout=TIMEOUT_S)
    assert (ready, rest) == ([ref], [])

    async def awaited() -> Any:
        return await kaas.invoke(task, {"x": numbers()}, scalars={"factor": 2.0})

    for result in (ray.get(ref), asyncio.run(awaited()), ref.future().result()):
        np.testing.assert_allclose(result, numbers() * 2)


def test_ctask_ktask_ctask() -> None:
    drawn = double.remote(numbers())
    scaled = kaas.invoke(scale_task(), {"x": drawn}, scalars={"factor": 3.0})
    added = kaas.invoke(add_task(), {"a": scaled, "b": drawn})
    np.testing.assert_allclose(ray.get(double.remote(added)), numbers() * 16, rtol=1e-6)


def test_views_of_one_object() -> None:
    both = ray.put(numbers(2 * N))
    result = ray.get(kaas.invoke(add_task(), {"a": kaas.View(both), "b": kaas.View(both, 4 * N)}))
    np.testing.assert_allclose(result, numbers(2 * N)[:N] + numbers(2 * N)[N:])


def test_inputs_that_are_not_ready_block_no_request() -> None:
    gate = closed_gate()
    waiting = [
        kaas.invoke(scale_task(), {"x": gate.value.remote(numbers(seed=i))}, scalars={"factor": 2}) for i in range(6)
    ]
    result = ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}), timeout=TIMEOUT_S)
    np.testing.assert_allclose(result, numbers() * 2)
    assert kaas.status().waiting == 6
    ray.get(gate.open.remote())
    for i, result in enumerate(ray.get(waiting, timeout=TIMEOUT_S)):
        np.testing.assert_allclose(result, numbers(seed=i) * 2)


def test_failed_input_fails_its_request_only() -> None:
    bad = [
        kaas.invoke(scale_task(), {"x": fail.remote()}, scalars={"factor": 2}),
        kaas.invoke(add_task(), {"a": numbers(), "b": kaas.invoke(add_task(), {"a": numbers(), "b": fail.remote()})}),
    ]
    good = kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})
    for ref, buffer, reason in zip(bad, "xb", ("ZeroDivisionError: no such weights", "InputFailed"), strict=True):
        with pytest.raises(errors.InputFailed) as caught:
            ray.get(ref)
        assert caught.value.buffer == buffer
        assert reason in caught.value.reason
    with pytest.raises(errors.InputFailed) as caught:
        ray.get(bad[0])
    assert isinstance(caught.value.cause.__cause__, ZeroDivisionError)  # type: ignore[attr-defined]
    np.testing.assert_allclose(ray.get(good), numbers() * 2)


# --- functions


def test_function_with_constants_is_cached_on_the_device() -> None:
    weights = numbers(seed=5)
    add = kaas.register(add_task(), constants={"a": weights}).options(client="carol")
    for seed in range(10):
        np.testing.assert_allclose(ray.get(add.remote(b=numbers(seed=seed))), weights + numbers(seed=seed))
    tiers = {tier.tier: tier for tier in kaas.stats().tiers if tier.client == "carol"}
    assert tiers["store"].objects + tiers["device"].objects == 10
    assert tiers["store"].objects <= 2, "one miss on each device at most"
    assert tiers["device"].nbytes == tiers["device"].objects * 4 * N


def test_constants_may_be_references_views_and_late() -> None:
    gate = closed_gate()
    late = gate.value.remote(numbers(2 * N))
    add = kaas.register(add_task(), constants={"a": kaas.View(late, 4 * N), "b": late})
    wrong = add.remote()
    right = kaas.register(add_task(), constants={"a": kaas.View(late, 4 * N), "b": kaas.View(late)}).remote()
    assert until(lambda status: status.waiting == 2)
    ray.get(gate.open.remote())
    np.testing.assert_allclose(ray.get(right), numbers(2 * N)[N:] + numbers(2 * N)[:N])
    with pytest.raises(errors.WrongSize):
        ray.get(wrong)


def test_scalars_of_a_function() -> None:
    scale = kaas.register(scale_task())
    for ref in (scale.remote(x=numbers(), factor=4), scale.options(scalars={"factor": 4}).remote(x=numbers())):
        np.testing.assert_allclose(ray.get(ref), numbers() * 4)
    np.testing.assert_allclose(ray.get(kaas.invoke(scale, {"x": numbers()}, scalars={"factor": 2})), numbers() * 2)
    with pytest.raises(errors.MissingScalar):
        scale.remote(x=numbers())


def test_function_in_a_ray_task() -> None:
    add = kaas.register(add_task(), constants={"a": numbers(seed=1)})

    @ray.remote
    def use(function: kaas.Function) -> Any:
        return ray.get(function.remote(b=numbers(seed=2)))

    np.testing.assert_allclose(ray.get(use.remote(add)), numbers(seed=1) + numbers(seed=2))


# --- accounting


def test_stats_by_client_function_and_stage() -> None:
    job = current_session().client
    for client in ("alice", "alice", None):
        ray.get(kaas.invoke(scale_task(name="counted"), {"x": numbers()}, scalars={"factor": 1}, client=client))
    stats = kaas.stats(reset=True)
    counts = {(entry.client, entry.stage): entry.count for entry in stats.stages if entry.function == "counted"}
    for stage in ("queue", "plan", "fetch", "copy_in", "kernels", "copy_out", "total", "request"):
        assert counts["alice", stage] == 2
        assert counts[job, stage] == 1
    times = {entry.stage: entry for entry in stats.stages if entry.client == "alice"}
    assert 0 < times["kernels"].p50_s <= times["kernels"].p99_s
    assert times["total"].mean_s <= times["request"].mean_s
    assert {(entry.client, entry.outcome) for entry in stats.outcomes} == {("alice", "succeeded"), (job, "succeeded")}
    assert kaas.stats().stages == ()


def test_status() -> None:
    ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1}))
    status = until(lambda status: all(device.state == "idle" for device in status.devices))
    assert [device.kind for device in status.devices] == ["software"] * 2
    infos = [device.info for device in status.devices if device.info]
    assert len({info.pid for info in infos}) == 2
    assert all(info.memory_bytes == DEVICE_BYTES for info in infos)
    assert (status.queued, status.waiting, status.running, status.broken) == (0, 0, 0, None)
    assert scale_task().label in status.functions


# --- faults


def _too_many_arguments() -> kaas.KTask:
    out = kaas.Buffer("out", 1, "int32")
    return kaas.KTask([kaas.Kernel(STEPS, "crash", 1, 1, [kaas.Out(out), kaas.i32(1)])], [out])


def _wrong_argument_size() -> kaas.KTask:
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), kaas.i32(1)])], [out])


def _block_too_large() -> kaas.KTask:
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 2048, [kaas.Out(out), kaas.i64(1)])], [out])


def _shared_too_large() -> kaas.KTask:
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), kaas.i64(1)], shared_bytes=1 << 20)], [out])


def _larger_than_the_device() -> kaas.KTask:
    out = kaas.Buffer("out", DEVICE_BYTES, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.InOut(out), kaas.i64(1)])], [out])


def _corrupt_image() -> kaas.KTask:
    library = kaas.Library.from_ptx(".version 9.0\n.target sm_80\n.visible .entry f( {;} nothing\n")
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(library, "f", 1, 1, [kaas.Out(out)])], [out])


def _scale(x: Any, symbol: str = "scale") -> Any:
    return kaas.invoke(scale_task(symbol=symbol), {"x": x}, scalars={"factor": 1})


THROUGH_THE_REF: dict[str, tuple[Callable[[], Any], type[kaas.KaasError], dict[str, Any]]] = {
    "unknown symbol": (lambda: _scale(numbers(), "scales"), errors.UnknownSymbol, {"symbol": "scales"}),
    "number of arguments": (
        lambda: kaas.invoke(_too_many_arguments(), {}),
        errors.ArgumentMismatch,
        {"expected_count": 1, "given_count": 2},
    ),
    "size of an argument": (
        lambda: kaas.invoke(_wrong_argument_size(), {}),
        errors.ArgumentMismatch,
        {"argument": 1, "expected_bytes": 8, "given_bytes": 4},
    ),
    "block": (lambda: kaas.invoke(_block_too_large(), {}), errors.LaunchLimit, {"given": 2048, "limit": 1024}),
    "shared memory": (lambda: kaas.invoke(_shared_too_large(), {}), errors.LaunchLimit, {"given": 1 << 20}),
    "too large": (
        lambda: kaas.invoke(_larger_than_the_device(), {"out": ray.put(np.zeros(0, np.uint32))}),
        errors.RequestTooLarge,
        {"capacity_bytes": DEVICE_BYTES},
    ),
    "corrupt image": (lambda: kaas.invoke(_corrupt_image(), {}), errors.InvalidCode, {}),
    "size of a reference": (
        lambda: _scale(ray.put(numbers(N + 1))),
        errors.WrongSize,
        {"buffer": "x", "expected_bytes": 4 * N, "given_bytes": 4 * N + 4},
    ),
    "view of a reference": (lambda: _scale(kaas.View(ray.put(numbers()), 4)), errors.WrongSize, {"buffer": "x"}),
    "dtype of a reference": (
        lambda: _scale(ray.put(np.zeros(N, np.int32))),
        errors.WrongDtype,
        {"expected": "float32", "given": "int32"},
    ),
    "reference to no array": (lambda: _scale(ray.put({"x": 1})), errors.NotContiguous, {"buffer": "x"}),
}


@pytest.mark.parametrize("name", THROUGH_THE_REF)
def test_faults_through_the_reference(name: str) -> None:
    send, expected, fields = THROUGH_THE_REF[name]
    with pytest.raises(expected) as caught:
        ray.get(send())
    assert fields.items() <= caught.value.fields.items()
    assert type(caught.value.cause) in (expected, *expected.__subclasses__())  # type: ignore[attr-defined]
    assert caught.value.message == caught.value.cause.message  # type: ignore[attr-defined]
    np.testing.assert_array_equal(ray.get(_scale(numbers())), numbers())


def test_near_matches_of_a_symbol() -> None:
    with pytest.raises(errors.UnknownSymbol) as caught:
        ray.get(_scale(numbers(), "scales"))
    assert "scale" in caught.value.near


def test_fault_of_a_task_with_several_outputs_is_in_each_reference() -> None:
    refs = kaas.invoke(both_task(LARGE), {"x": ray.put(numbers())})
    for ref in refs:
        with pytest.raises(errors.WrongSize):
            ray.get(ref)


IN_THE_CALL: dict[str, tuple[Callable[[], Any], type[kaas.KaasError]]] = {
    "missing input": (lambda: kaas.invoke(add_task(), {"a": numbers()}), errors.MissingInput),
    "extra input": (lambda: kaas.invoke(add_task(), dict.fromkeys("abz", numbers())), errors.UnexpectedInput),
    "too small": (lambda: _scale(numbers(3)), errors.WrongSize),
    "dtype": (lambda: _scale(np.zeros(N)), errors.WrongDtype),
    "not contiguous": (lambda: _scale(numbers(2 * N)[::2]), errors.NotContiguous),
    "missing scalar": (lambda: kaas.invoke(scale_task(), {"x": numbers()}), errors.MissingScalar),
    "scalar's type": (
        lambda: kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": "2"}),
        errors.WrongScalar,
    ),
    "no iterations": (
        lambda: kaas.invoke(
            scale_task(iterations=kaas.Scalar("n", "i32")), {"x": numbers()}, scalars={"factor": 1, "n": 0}
        ),
        errors.WrongScalar,
    ),
    "no kTask": (lambda: kaas.invoke("scale", {}), errors.InvalidRequest),  # type: ignore[arg-type]
    "inputs by position": (lambda: kaas.invoke(add_task(), [numbers()]), errors.InvalidRequest),  # type: ignore[arg-type]
    "client": (lambda: kaas.invoke(spin_task(), {}, scalars={"steps": 1}, client=5), errors.InvalidRequest),  # type: ignore[arg-type]
    "nameless client": (
        lambda: kaas.invoke(spin_task(), {}, scalars={"steps": 1}, client=""),
        errors.InvalidRequest,
    ),
    "endless deadline": (
        lambda: kaas.invoke(spin_task(), {}, scalars={"steps": 1}, deadline_s=10**400),
        errors.InvalidRequest,
    ),
    "deadline": (lambda: kaas.invoke(spin_task(), {}, scalars={"steps": 1}, deadline_s=-1), errors.InvalidRequest),
    "retries": (lambda: kaas.invoke(spin_task(), {}, scalars={"steps": 1}, retries=-1), errors.InvalidRequest),
}


@pytest.mark.parametrize("name", IN_THE_CALL)
def test_faults_in_the_call(name: str) -> None:
    send, expected = IN_THE_CALL[name]
    with pytest.raises(expected):
        send()


def _all_errors(cls: type[kaas.KaasError] = kaas.KaasError) -> Iterator[type[kaas.KaasError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _all_errors(below)


def test_every_error_survives_ray() -> None:
    @ray.remote
    def raise_it(error: kaas.KaasError) -> None:
        raise error

    classes = [cls for cls in dict.fromkeys(_all_errors()) if cls.__module__ == errors.__name__]
    assert len(classes) > 30
    sent = []
    for cls in classes:
        names = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
        sent.append(cls("what happened", **dict.fromkeys(names, 7)))
    for error, ref in zip(sent, [raise_it.remote(error) for error in sent], strict=True):
        with pytest.raises(type(error)) as caught:
            ray.get(ref)
        for got in (caught.value, caught.value.cause):  # type: ignore[attr-defined]
            assert (got.message, got.fields) == ("what happened", error.fields)


# --- deadlines, cancelling, dying


def spin(steps: int = SPIN_STEPS, **options: Any) -> Any:
    return kaas.invoke(spin_task(), {}, scalars={"steps": steps}, **options)


def test_deadline() -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        ray.get(spin(deadline_s=0.2), timeout=TIMEOUT_S)
    assert caught.value.deadline_s == 0.2 <= caught.value.waited_s
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.full
def test_cancel_queued_and_running() -> None:
    until(lambda status: status.running == 0)
    running = [spin(), spin()]
    until(lambda status: status.running == 2)
    queued = spin()
    until(lambda status: status.queued == 1)
    ray.cancel(queued)
    ray.cancel(running[0])
    for ref in (queued, running[0]):
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=TIMEOUT_S)
    status = kaas.status()
    assert (status.queued, status.running) == (0, 2), "the slot of a cancelled request is free when its kernels end"
    assert ray.get(spin(3), timeout=TIMEOUT_S) == ray.get(spin(3), timeout=TIMEOUT_S)
    ray.get(running[1], timeout=TIMEOUT_S)
    assert {"cancelled", "succeeded"} == {entry.outcome for entry in kaas.stats().outcomes}


def test_killed_executor_is_replaced_and_its_request_runs_again() -> None:
    expected = ray.get(spin(SPIN_STEPS), timeout=TIMEOUT_S)
    until(lambda status: status.running == 0)
    ref = spin()
    status = until(lambda status: status.running == 1)
    (busy,) = (device for device in status.devices if device.running)
    assert busy.info is not None
    os.kill(busy.info.pid, signal.SIGKILL)
    assert ray.get(ref, timeout=TIMEOUT_S) == expected
    replaced = until(lambda status: all(device.state == "idle" for device in status.devices))
    assert busy.info.pid not in {device.info.pid for device in replaced.devices if device.info}


def test_killed_executor_without_retries() -> None:
    until(lambda status: status.running == 0)
    ref = spin(retries=0)
    status = until(lambda status: status.running == 1)
    (pid,) = (device.info.pid for device in status.devices if device.running and device.info)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.ExecutorDied) as caught:
        ray.get(ref, timeout=TIMEOUT_S)
    assert caught.value.attempts == 1
    assert str(pid) in caught.value.executor


def test_crashing_kernel_hurts_only_its_own_request() -> None:
    bad = kaas.invoke(crash_task(), {}, retries=1)
    good = [_scale(numbers(seed=i)) for i in range(20)]
    with pytest.raises(
        errors.DeviceLost, match=r"kernel crash: illegal access in block \(0, 0, 0\), warp 0: 0x8, "
    ) as caught:
        ray.get(bad, timeout=TIMEOUT_S)
    assert caught.value.fields["code_name"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    for i, result in enumerate(ray.get(good, timeout=TIMEOUT_S)):
        np.testing.assert_array_equal(result, numbers(seed=i))
