"""Outputs that stay on the devices, through Ray: read by kTasks, by Ray tasks, by the program, after a death."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from numpy.typing import NDArray

import kaas
from kaas.errors import InputFailed, InvalidRequest, MissingInput, ResultLost
from kaas.pool.on_ray.backend import references
from kaas.pool.on_ray.pool_actor import output_ids
from kaas.wire.status.stats import TierStats
from tests.api.conftest import add_task, both_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.ray

N = 1 << 16  # elements of an output: 256 KB, more than travels in a message
OUTPUT_BYTES = 4 * N
STEPS = 1_000_000_000


@pytest.fixture(scope="module", autouse=True)
def small_pool(start: Callable[..., bool]) -> None:
    """Two devices whose caches hold four outputs each. One request after another runs on the same of them."""
    devices = (kaas.Device("software", 16 << 20),) * 2
    start(config=kaas.Config(devices, cache_bytes=4 * OUTPUT_BYTES, host_cache_bytes=0))
    while {device.state for device in kaas.status().devices} != {"idle"}:
        pass


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    kaas.stats(reset=True)


def keep(x: Any, factor: float = 2, n: int = N, **options: Any) -> Any:
    return kaas.invoke(scale_task(n), {"x": x}, scalars={"factor": factor}, keep=True, **options)


def scale(x: Any, factor: float = 2) -> NDArray[np.float32]:
    array: NDArray[np.float32] = ray.get(kaas.invoke(scale_task(N), {"x": x}, scalars={"factor": factor}))
    return array


def tiers() -> dict[str, TierStats]:
    """Return the figures of the only function and device."""
    found = kaas.stats(reset=True).tiers
    assert len({(tier.function, tier.device) for tier in found}) <= 1
    return {tier.tier: tier for tier in found}


def pid(device: int) -> int:
    info = kaas.status().devices[device].info
    assert info is not None
    return info.pid


def test_a_chain_stays_on_its_device() -> None:
    source = kaas.put(numbers(N))
    y = source
    for _ in range(8):
        y = keep(y)
    resident = ray.get(y)
    found = tiers()
    assert (found["device"].objects, found["device"].compulsory, found["device"].capacity) == (7, 1, 0)
    assert found["store"].objects == 1
    assert isinstance(resident, kaas.Resident)
    assert (resident.shape, resident.dtype, resident.nbytes) == ((N,), "float32", OUTPUT_BYTES)
    for _ in range(2):
        array = resident.get()
        np.testing.assert_array_equal(array, 256 * numbers(N))
        assert not array.flags.writeable
    np.testing.assert_array_equal(ray.get(y), 256 * numbers(N))
    assert np.asarray(resident, np.float64).dtype == np.float64
    assert np.array(resident).flags.writeable
    with pytest.raises(ValueError, match="needs a copy"):
        np.array(resident, np.float64, copy=False)


def test_a_kept_output_is_known_by_its_reference() -> None:
    refs = [keep(numbers(N)) for _ in range(20)]
    both = [kaas.invoke(both_task(N), {"x": ref}, keep=True) for ref in refs]
    residents = ray.get([*refs, *(ref for pair in both for ref in pair)])
    assert [resident.key for resident in residents] == [
        ref.binary() for ref in (*refs, *(ref for pair in both for ref in pair))
    ]
    for ref in refs:
        task, index = ref.binary()[:-4], int.from_bytes(ref.binary()[-4:], "little")
        assert output_ids(task, [index - 1]) == {index - 1: ref.binary()}
    for quadruple, double in both:
        np.testing.assert_array_equal(ray.get(quadruple), 8 * numbers(N))
        np.testing.assert_array_equal(ray.get(double), 4 * numbers(N))


def test_small_kept_outputs_are_returned_at_once_and_stay_on_the_device() -> None:
    y = keep(numbers(), n=1000)
    array = ray.get(y)
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, 2 * numbers())
    kaas.stats(reset=True)
    again = ray.get(kaas.invoke(scale_task(), {"x": y}, scalars={"factor": 2}))
    np.testing.assert_array_equal(again, 4 * numbers())
    assert (tiers()["device"].objects, tiers()) == (1, {})


def test_an_evicted_output_can_still_be_read() -> None:
    refs = [keep(numbers(N, seed=seed)) for seed in range(12)]
    for seed, ref in enumerate(refs):
        np.testing.assert_array_equal(ray.get(ref), 2 * numbers(N, seed=seed))
        np.testing.assert_array_equal(scale(ref), 4 * numbers(N, seed=seed))
    kaas.flush()
    np.testing.assert_array_equal(scale(refs[0]), 4 * numbers(N))


@ray.remote(num_cpus=0)
def total(x: Any, nested: list[Any]) -> tuple[float, float]:
    return float(np.sum(x)), float(np.sum(ray.get(nested[0])))


def test_ray_tasks_take_a_kept_output_as_an_array() -> None:
    y = keep(np.ones(N, np.float32))
    assert ray.get(total.remote(y, [y])) == (2 * N, 2 * N)


async def awaited(ref: Any) -> Any:
    return await ref


def test_a_kept_output_can_be_awaited_and_waited_for() -> None:
    import asyncio

    y = keep(numbers(N))
    assert ray.wait([y], timeout=TIMEOUT_S)[0] == [y]
    np.testing.assert_array_equal(asyncio.run(awaited(y)), 2 * numbers(N))


def invoked_spin() -> Any:
    return kaas.invoke(spin_task(), {}, scalars={"steps": STEPS})


def spinning(count: int) -> list[Any]:
    """Requests that run, one on each device from the first on; an executor that a test has ended comes back first."""
    while sum(device.info is not None for device in kaas.status().devices) < count:
        pass
    spins = [invoked_spin() for _ in range(count)]
    while kaas.status().running < count:
        pass
    return spins


def test_a_busy_executor_gives_out_its_outputs() -> None:
    y = keep(numbers(N))
    device = ray.get(y).device
    (spin,) = spinning(1)
    assert kaas.status().devices[device].running
    np.testing.assert_array_equal(scale(y), 4 * numbers(N))  # on the other device
    np.testing.assert_array_equal(ray.get(y), 2 * numbers(N))
    assert not ray.wait([spin], timeout=0)[0]
    assert ray.get(spin)


def slow_scale_task() -> kaas.KTask:
    """As `scale_task(N)`, but it takes about STEPS nanoseconds."""
    scale, spin = scale_task(N), spin_task()
    return kaas.KTask([*scale.kernels, *spin.kernels], scale.outputs)


@pytest.mark.full  # it tries until chance has the requests cross, about 20 s
def test_two_executors_that_want_each_others_outputs() -> None:
    """While both are busy, two more requests wait. The first that gets a device has its input on the other one; so has
    the second, since the first still runs when the other device is free."""
    crossed: list[tuple[int, kaas.Resident]] = []
    while not crossed:
        (spin,) = spinning(1)
        refs = [keep(numbers(N))]  # on the other device
        ray.get([spin, *refs])
        refs.append(keep(numbers(N, seed=1)))  # on that which has become idle last
        before = ray.get(refs)
        if before[0].device == before[1].device:
            continue
        first = spinning(1)
        free_first = next(number for number, device in enumerate(kaas.status().devices) if device.running)
        spins = [*first, invoked_spin()]
        while kaas.status().running < 2:
            pass
        order = sorted((0, 1), key=lambda each: before[each].device == free_first)
        slow = kaas.register(slow_scale_task())
        scalars = {"factor": 2, "steps": STEPS}
        moved = ray.get([kaas.invoke(slow, {"x": refs[each]}, scalars=scalars, keep=True) for each in order])
        ray.get(spins)
        if [one.device for one in moved] == [before[each].device for each in order[::-1]]:
            crossed = list(zip(order, moved, strict=True))
    for seed, resident in crossed:
        np.testing.assert_array_equal(resident, 4 * numbers(N, seed=seed))


@pytest.mark.full
def test_an_output_of_a_killed_executor_is_made_again() -> None:
    source = kaas.put(numbers(N))
    refs = [source]
    for _ in range(3):
        refs.append(keep(refs[-1]))
    residents = ray.get(refs[1:])
    (device,) = {resident.device for resident in residents}
    small = keep(numbers(), n=1000)
    ray.get(small)
    os.kill(pid(device), signal.SIGKILL)
    np.testing.assert_array_equal(scale(refs[3]), 16 * numbers(N))  # a consumer that comes after the kill
    np.testing.assert_array_equal(residents[1].get(), 4 * numbers(N))
    assert ray.get(total.remote(refs[1], [refs[1]]))[0] == pytest.approx(2 * float(numbers(N).sum()), rel=1e-5)
    np.testing.assert_array_equal(ray.get(small), 2 * numbers())
    bound = kaas.register(add_task(N), {"a": refs[2]})
    np.testing.assert_array_equal(ray.get(bound.remote(b=refs[1])), 6 * numbers(N))
    ray.get(kaas.prefetch(refs[3]))


@pytest.mark.full
def test_a_request_that_waits_for_an_output_when_its_executor_ends() -> None:
    y = keep(numbers(N))
    device = ray.get(y).device
    (spin,) = spinning(1)
    z = keep(y, retries=0)  # on the other device
    os.kill(pid(device), signal.SIGKILL)
    np.testing.assert_array_equal(ray.get(z), 4 * numbers(N))
    assert ray.get(spin)


def test_a_failing_request_keeps_nothing() -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def broken() -> None:
        raise ZeroDivisionError("no object")

    y = keep(broken.remote())
    with pytest.raises(InputFailed, match="no object"):
        ray.get(y)
    with pytest.raises(InputFailed):
        scale(y)


@pytest.mark.full
def test_a_cancelled_request_keeps_nothing() -> None:
    spins = spinning(2)
    y = keep(numbers(N))
    ray.cancel(y)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(y)
    assert all(ray.get(spins))
    np.testing.assert_array_equal(ray.get(keep(numbers(N))), 2 * numbers(N))


def test_some_of_several_outputs() -> None:
    function = kaas.register(both_task(N)).options(keep=["double"])
    quadruple, double = ray.get(list(function.remote(x=numbers(N))))
    assert isinstance(quadruple, np.ndarray)
    assert isinstance(double, kaas.Resident)
    np.testing.assert_array_equal(quadruple, 4 * numbers(N))
    np.testing.assert_array_equal(double, 2 * numbers(N))
    plain = ray.get(list(kaas.invoke(function, {"x": numbers(N)}, keep=False)))
    assert all(isinstance(array, np.ndarray) for array in plain)
    for wrong in ("double", ["single"], 3):
        with pytest.raises(InvalidRequest):
            kaas.invoke(function, {"x": numbers(N)}, keep=wrong)  # type: ignore[arg-type]
    with pytest.raises(MissingInput):
        kaas.invoke(function, {}, keep=True)


def known_to_the_pool(name: str) -> bool:
    """Return True if a process has a reference to this object of the pool, as far as the pool knows from Ray."""
    pool = ray.get_actor("kaas", namespace="kaas")
    return bool(ray.get(pool.__ray_call__.remote(lambda _: name in references())))


def test_an_output_without_a_reference_is_not_written_back() -> None:
    ray.get(kaas.prefetch(kaas.put(np.zeros(4 * N, np.float32))))  # evicts everything, arenas too
    kaas.flush()
    ref = kaas.put(numbers(N))
    kaas.stats(reset=True)
    evicted = []
    for _ in range(40):
        name = ray.get(keep(ref))._value.hex()
        until(lambda: not known_to_the_pool(name))  # noqa: B023 - it is called at once
        evicted += [tier.evictions for tier in [tiers().get("device")] if tier]
    assert sum(evicted) <= 4  # there is room for three and the input


def store_bytes() -> float:
    """Return the bytes in Ray's object store, as of some time ago."""
    name = "object_store_memory"
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return float(ray.cluster_resources()[name]) - free.get(name, 0.0)  # type: ignore[no-untyped-call]


@pytest.mark.full
def test_nothing_is_left_of_outputs_without_a_reference() -> None:
    """200 times 256 KB went to the store; 8 MB that are put there afterwards show that the figure is up to date."""
    for number in range(200):
        y = keep(numbers(N))
        if number % 3:
            y = keep(y)
        if number % 50 == 0:
            np.testing.assert_array_equal(ray.get(y), (4 if number % 3 else 2) * numbers(N))
        del y
    kaas.flush()
    mark_bytes = 8 << 20
    mark = kaas.put(np.zeros(mark_bytes, np.uint8))
    while not mark_bytes <= store_bytes() < mark_bytes + 8 * OUTPUT_BYTES:
        pass
    del mark


def test_an_output_that_ends_with_its_pool_is_lost() -> None:
    """This test comes last: there is no pool after it."""
    resident = ray.get(keep(numbers(N)))
    ray.kill(ray.get_actor("kaas", namespace="kaas"))
    with pytest.raises(ResultLost, match="is gone") as caught:
        resident.get()
    assert caught.value.device == resident.device
    assert isinstance(caught.value.__cause__, ray.exceptions.RayError)
