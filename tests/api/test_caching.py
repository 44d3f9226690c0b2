"""Objects on the devices: loaded before a request reads them, and pinned until a program unpins them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

import kaas
from kaas.api.attached import current_session
from kaas.cli.main import app
from kaas.errors import InputFailed, InvalidRequest, NotContiguous, OutOfDeviceMemory, RequestTooLarge
from kaas.wire.status.stats import TierStats
from kaas.wire.status.status import PinStatus
from tests.api.conftest import add_task, numbers, scale_task
from tests.exporters import Exporter

pytestmark = pytest.mark.ray

KIB = 1024
N = 256  # elements of the buffers: 1 KiB


@pytest.fixture(scope="module", autouse=True)
def small_pool(start: Callable[..., bool]) -> None:
    """One device whose cache holds the arena of a request and two objects."""
    config = kaas.Config((kaas.Device("software", 16 << 20),), cache_bytes=3 * KIB, host_cache_bytes=2 * KIB)
    start(config=config)


@pytest.fixture(autouse=True)
def nothing_cached() -> None:
    kaas.flush()
    kaas.stats(reset=True)


def tiers(function: str | None = None) -> dict[str, TierStats]:
    """Return the figures of one function, or of the only one, by tier."""
    found = [tier for tier in kaas.stats(reset=True).tiers if function in (None, tier.function)]
    assert len({tier.function for tier in found}) <= 1
    return {tier.tier: tier for tier in found}


def scale(ref: Any, factor: float = 2) -> Any:
    return ray.get(kaas.invoke(scale_task(N), {"x": ref}, scalars={"factor": factor}))


def test_an_object_that_was_put_is_fetched_once() -> None:
    x = kaas.put(numbers(N))
    for _ in range(3):
        np.testing.assert_allclose(scale(x), 2 * numbers(N))
    found = tiers()
    assert (found["device"].objects, found["device"].compulsory, found["device"].capacity) == (2, 1, 0)
    assert (found["store"].objects, found["store"].nbytes) == (1, KIB)
    with pytest.raises(NotContiguous):
        kaas.put(numbers(2 * N)[::2])


def test_an_array_of_another_library_is_put_as_a_numpy_array() -> None:
    x = kaas.put(Exporter(numbers(N)))
    assert isinstance(ray.get(x), np.ndarray)
    np.testing.assert_allclose(scale(x), 2 * numbers(N))
    np.testing.assert_allclose(scale(Exporter(numbers(N))), 2 * numbers(N))


def test_a_prefetched_object_is_a_hit() -> None:
    x = kaas.put(numbers(N, seed=1))
    ray.get(kaas.prefetch(x, device=0))
    ahead = tiers("")
    assert (ahead["device"].compulsory, ahead["host"].compulsory, ahead["store"].nbytes) == (1, 1, KIB)
    assert {tier.client for tier in ahead.values()} == {current_session().client}
    np.testing.assert_allclose(scale(x), 2 * numbers(N, seed=1))
    assert tiers()["device"].misses == 0


def test_a_prefetched_function_has_its_constants_on_the_device() -> None:
    weights = numbers(N, seed=2)
    add = kaas.register(add_task(N), constants={"a": weights})
    assert ray.get(kaas.prefetch(add.options(client="ann"))) is None
    stats = kaas.stats(reset=True)
    assert {(tier.function, tier.client, tier.misses) for tier in stats.tiers if tier.tier == "device"} == {
        (add.task.label, "ann", 1)
    }
    assert not stats.outcomes
    np.testing.assert_allclose(ray.get(add.remote(b=weights)), 2 * weights)
    found = tiers()
    assert (found["device"].objects, found["device"].misses) == (1, 0)
    kaas.flush(add)
    ray.get(add.remote(b=weights))
    missed = tiers()["device"]
    assert (missed.compulsory, missed.capacity) == (1, 0)  # a flush is no eviction for room
    assert ray.get(kaas.prefetch(kaas.register(scale_task(N)))) is None


def test_a_pin_keeps_an_object_on_the_device() -> None:
    pinned, others = kaas.put(numbers(N)), [kaas.put(numbers(N, seed=seed)) for seed in range(3)]
    kaas.pin(pinned)
    for other in others:
        scale(other)
    kaas.flush()
    kaas.stats(reset=True)
    scale(pinned)
    assert tiers()["device"].misses == 0
    kaas.pin(others[0])
    with pytest.raises(OutOfDeviceMemory):
        scale(others[1])
    kaas.unpin(pinned)
    kaas.unpin()
    for other in others * 2:
        scale(other)
    kaas.stats(reset=True)
    scale(pinned)
    assert tiers()["device"].capacity == 1


def test_a_pin_outlives_its_executor() -> None:
    pinned = kaas.put(numbers(N))
    kaas.pin(pinned)
    (before,) = kaas.status().devices
    assert before.info is not None
    os.kill(before.info.pid, signal.SIGKILL)
    np.testing.assert_allclose(scale(kaas.put(numbers(N, seed=1))), 2 * numbers(N, seed=1))
    kaas.flush()  # comes after the first commands to the new executor
    kaas.stats(reset=True)
    scale(pinned)
    assert tiers()["device"].misses == 0
    kaas.unpin()


class Owner:
    """An actor that owns an object, which ends with it."""

    def make(self) -> list[Any]:
        self.ref = ray.put(numbers(N))
        return [self.ref]


def get_for_ever(ref: Any) -> None:
    while True:
        ray.get(ref)


@pytest.mark.full
def test_status_shows_a_pin_that_is_lost_with_its_object() -> None:
    actor: Any = ray.remote(num_cpus=0)(Owner)
    owner = actor.remote()
    (ref,) = ray.get(owner.make.remote())
    function = kaas.register(add_task(N), constants={"a": numbers(N)})
    kaas.pin(ref)
    kaas.pin(function)
    (before,) = kaas.status().devices
    assert before.pins == (PinStatus(ref.hex(), "held"), PinStatus(function.task.label, "held"))
    assert before.info is not None
    ray.kill(owner)
    with pytest.raises(ray.exceptions.ObjectLostError):
        get_for_ever(ref)  # until Ray has noticed, its object can still be fetched
    os.kill(before.info.pid, signal.SIGKILL)
    after = before
    while after.worker == before.worker or "loading" in {pin.state for pin in after.pins}:
        (after,) = kaas.status().devices
    assert [pin.state for pin in after.pins] == ["lost", "held"]
    assert "InputFailed" in after.pins[0].reason
    printed = CliRunner().invoke(app, ["status", "--ray"], env={"COLUMNS": "200"}).stdout
    assert "1 lost, 1 held" in printed
    assert f"lost on device 0: {ref.hex()}" in printed
    kaas.unpin()
    assert kaas.status().devices[0].pins == ()


def test_invalid_prefetches_and_pins_are_refused() -> None:
    big = kaas.put(numbers(4 * N))
    with pytest.raises(RequestTooLarge):
        ray.get(kaas.prefetch(big))
    with pytest.raises(RequestTooLarge) as caught:
        kaas.pin(big)
    assert type(caught.value) is RequestTooLarge
    with pytest.raises(InvalidRequest, match="no 7"):
        kaas.pin(kaas.put(numbers(N)), device=7)
    with pytest.raises(InvalidRequest, match="a device is a number"):
        kaas.pin(kaas.put(numbers(N)), device=True)
    with pytest.raises(InvalidRequest, match=r"kaas\.prefetch takes"):
        kaas.prefetch(numbers(N))
    with pytest.raises(InvalidRequest):
        kaas.pin(None)

    @ray.remote(num_cpus=0, max_retries=0)
    def broken() -> None:
        raise ZeroDivisionError("no object")

    with pytest.raises(InputFailed, match="no object"):
        kaas.pin(broken.remote())
