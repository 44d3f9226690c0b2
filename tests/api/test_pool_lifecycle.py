"""A pool from start to shutdown: several drivers, other configurations, Ray with and without authentication."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import kaas
import softgpu
from kaas import errors
from kaas.api.session import HERE
from kaas.cache_folders import cache_root
from kaas.pool.on_ray.cluster import NAMESPACE
from kaas.scheduling.decisions import Decision, Dispatch
from kaas.scheduling.events import Event, RequestArrived
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from tests.api.conftest import DEVICE_BYTES, add_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parent.parent.parent
DEVICES = [kaas.Device("software", DEVICE_BYTES)]


def run_program(program: str, **environment: str) -> str:
    """Run a program in a process of its own; return its output."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def cluster(own_ray: None) -> str:  # noqa: ARG001 - none runs
    """Return the address of a Ray that the user started, whose nodes declare no software GPUs."""
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False)
    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture
def attached(cluster: str) -> str:
    kaas.init(devices=DEVICES)
    return cluster


def for_ever() -> None:
    threading.Event().wait()


def scaled() -> Any:
    return ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}), timeout=TIMEOUT_S)


@pytest.mark.ray
def test_before_init(cluster: str) -> None:  # noqa: ARG001 - Ray runs, and still there is no pool
    kaas.shutdown()
    calls = (
        lambda: kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}),
        lambda: kaas.register(scale_task()),
        kaas.status,
        kaas.stats,
        lambda: kaas.api.program.attach("no such pool"),
    )
    for call in calls:
        with pytest.raises(errors.NotInitialized):
            call()


@pytest.mark.ray
def test_init_is_idempotent_and_keeps_the_users_ray(attached: str) -> None:
    np.testing.assert_allclose(scaled(), numbers() * 2)
    before = kaas.status()
    kaas.init()
    kaas.init(devices=DEVICES)
    kaas.init(address=attached)
    assert kaas.status().devices[0].info == before.devices[0].info
    kaas.shutdown()
    assert ray.is_initialized()


SECOND_DRIVER = """
import ray, kaas
import softgpu
from kaas import errors
from kaas.cache_folders import cache_root
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from tests.api.conftest import numbers, scale_task
kaas.init(address={address!r})
result = ray.get(kaas.invoke(scale_task(), {{"x": numbers()}}, scalars={{"factor": 2}}, client="second"))
print((result == numbers() * 2).all(), kaas.status().devices[0].info.pid)
kaas.init(config=kaas.Config(policy="adaptive"))
try:
    kaas.init(config=kaas.Config(run_limit_s=5, cache_bytes=1 << 20))
except errors.ConfigMismatch as error:
    print(type(error).__name__, error.differences)
"""


@pytest.mark.ray
@pytest.mark.full
def test_second_driver_attaches_and_its_own_config_is_refused(attached: str) -> None:
    np.testing.assert_allclose(scaled(), numbers() * 2)
    pid = kaas.status().devices[0].info.pid  # type: ignore[union-attr]
    lines = run_program(SECOND_DRIVER.format(address=attached)).splitlines()
    assert lines == [f"True {pid}", "ConfigMismatch ('run_limit_s', 'cache_bytes')"]
    assert "second" in {entry.client for entry in kaas.stats().outcomes}
    np.testing.assert_allclose(scaled(), numbers() * 2)


KILLED_DRIVER = """
import os, signal
import kaas
from tests.api.conftest import spin_task
kaas.init(address={address!r})
refs = [kaas.invoke(spin_task(), {{}}, scalars={{"steps": 2_000_000_000}}, client="killed") for _ in range(50)]
refs += [kaas.etask(lambda: None).options(client="killed").remote() for _ in range(20)]
while kaas.status().queued < 60:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.ray
def test_queued_requests_of_a_killed_driver_are_cancelled_and_others_still_run(attached: str) -> None:
    scaled()
    kaas.stats(reset=True)
    with pytest.raises(AssertionError):  # it was killed
        run_program(KILLED_DRIVER.format(address=attached))
    np.testing.assert_allclose(scaled(), numbers() * 2)  # before its time in the queue
    while kaas.status().running:
        pass
    assert kaas.status().queued == 0
    ended = Counter[str]()
    for entry in kaas.stats().outcomes:
        ended[entry.outcome] += entry.count * (entry.client == "killed")
    assert ended["cancelled"] >= 60
    assert ended["succeeded"] <= 4


@pytest.mark.ray
@pytest.mark.usefixtures("attached")
def test_configuration_that_differs_in_one_process() -> None:
    with pytest.raises(errors.ConfigMismatch) as caught:
        kaas.init(devices=DEVICES * 2)
    assert caught.value.differences == ("devices",)
    with pytest.raises(errors.ConfigMismatch):
        kaas.init(name="other")
    with pytest.raises(errors.InvalidConfig):
        kaas.init(config=kaas.Config(policy="lottery"))


@pytest.mark.ray
@pytest.mark.usefixtures("attached")
def test_shutdown_replies_to_waiting_requests() -> None:
    function = kaas.register(add_task(), constants={"a": numbers()})
    refs = [kaas.invoke(spin_task(), {}, scalars={"steps": 20_000_000_000}) for _ in range(3)]
    while not kaas.status().queued:
        pass
    kaas.shutdown()
    for ref in refs:
        with pytest.raises(errors.PoolStopped):
            ray.get(ref, timeout=TIMEOUT_S)
    for call in (scaled, lambda: function.remote(b=numbers())):
        with pytest.raises(errors.NotInitialized):
            call()
    kaas.shutdown()
    kaas.init(devices=DEVICES)
    np.testing.assert_allclose(scaled(), numbers() * 2)


@pytest.mark.ray
@pytest.mark.usefixtures("attached")
def test_shutdown_does_not_wait_for_objects_that_never_arrive() -> None:
    never = ray.remote(num_cpus=0)(for_ever).remote()
    loading = kaas.prefetch(never)
    while not kaas.status().devices[0].info:
        pass
    kaas.shutdown()
    with pytest.raises(errors.PoolStopped):
        ray.get(loading, timeout=TIMEOUT_S)
    ray.cancel(never, force=True)


@pytest.mark.ray
@pytest.mark.usefixtures("attached")
def test_pool_that_died_is_started_again() -> None:
    np.testing.assert_allclose(scaled(), numbers() * 2)
    ray.kill(ray.get_actor("kaas", namespace=NAMESPACE))
    session = HERE.session
    assert session is not None
    while not session.gone:  # Ray reports it a little later
        pass
    for call in (kaas.status, scaled, lambda: kaas.register(scale_task())):
        with pytest.raises(errors.PoolStopped):
            call()
    assert kaas.init(devices=DEVICES)
    assert not kaas.init()
    np.testing.assert_allclose(scaled(), numbers() * 2)


class User:
    """An actor that outlives a pool."""

    def add(self, function: kaas.Function) -> Any:
        return ray.get(function.remote(b=numbers()))

    def pool_has_ended(self) -> bool:
        here = kaas.api.session.HERE  # by its module: the class travels to the worker by value
        return here.session is not None and here.session.gone


@pytest.mark.ray
@pytest.mark.full
def test_a_ray_worker_continues_with_the_next_pool(cluster: str) -> None:  # noqa: ARG001 - Ray runs
    user: Any = ray.remote(num_cpus=0)(User).remote()
    for _ in range(2):
        kaas.init(devices=DEVICES)
        add = kaas.register(add_task(), constants={"a": numbers()})
        np.testing.assert_array_equal(ray.get(user.add.remote(add)), numbers() * 2)
        kaas.shutdown()
        while not ray.get(user.pool_has_ended.remote()):  # Ray reports it a little later
            pass


@pytest.mark.ray
@pytest.mark.skipif(softgpu.real_driver_present(), reason="here the GPU that Ray is told of may be real")
@pytest.mark.full
def test_gpus_without_a_driver(cluster: str) -> None:  # noqa: ARG001 - its node claims one GPU
    kaas.shutdown()
    kaas.init()
    with pytest.raises(errors.DeviceUnavailable, match="no CUDA driver"):
        scaled()
    assert [(device.kind, device.state) for device in kaas.status().devices] == [("gpu", "lost")]
    kaas.shutdown()


class Greedy(FirstComeFirstServed):
    """Dispatches the third request to a slot in which another one runs."""

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestArrived) and event.request == 2:
            return [Dispatch(event.request, 0, 0)]
        return super().handle(event)


@pytest.mark.ray
@pytest.mark.full
def test_an_error_of_a_policy_reaches_all_callers_and_a_new_pool_can_start(cluster: str) -> None:  # noqa: ARG001
    kaas.shutdown()
    kaas.init(devices=DEVICES, policy=Greedy)
    waiting = [kaas.invoke(spin_task(), {}, scalars={"steps": 20_000_000_000}) for _ in range(2)]
    while kaas.status().running + kaas.status().queued < 2:
        pass
    waiting.append(kaas.invoke(spin_task(), {}, scalars={"steps": 1}))
    for ref in [*waiting, kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})]:
        with pytest.raises(errors.PolicyError) as caught:
            ray.get(ref, timeout=TIMEOUT_S)
        error: Any = caught.value.cause  # type: ignore[attr-defined]  # Ray's
        assert (error.policy, type(error)) == ("Greedy", errors.PolicyError)
        assert any("RequestArrived" in line and "request=2" in line for line in error.story)
    assert "Greedy" in (kaas.status().broken or "")
    kaas.shutdown()
    kaas.init(devices=DEVICES)
    np.testing.assert_allclose(scaled(), numbers() * 2)


def clueless(devices: Any) -> Any:
    raise ZeroDivisionError(f"no plan for {len(devices)} devices")


@pytest.mark.ray
@pytest.mark.full
def test_policy_that_cannot_be_made_leaves_no_pool(cluster: str) -> None:
    kaas.shutdown()
    with pytest.raises(errors.PolicyError, match="no plan for 1 devices"):
        kaas.init(address=cluster, config=kaas.Config(devices=tuple(DEVICES), policy=clueless))
    kaas.init(devices=DEVICES)
    np.testing.assert_allclose(scaled(), numbers() * 2)


def policy_of_mine(devices: Any) -> Any:
    return FirstComeFirstServed(devices)


@pytest.mark.ray
@pytest.mark.full
def test_policy_may_be_a_function(cluster: str) -> None:
    kaas.shutdown()
    for opens in (True, False):
        assert kaas.init(address=cluster, config=kaas.Config(devices=tuple(DEVICES), policy=policy_of_mine)) is opens
    np.testing.assert_allclose(scaled(), numbers() * 2)
    kaas.shutdown()


ALONE = """
import os, subprocess, sys, ray, kaas
from tests.api.conftest import numbers, scale_task
kaas.init()
result = ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}))
print((result == numbers() * 2).all(), [device.kind for device in kaas.status().devices])
"""
COMMANDS = """
address = ray.get_runtime_context().gcs_address
without = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
command, kept = [sys.executable, "-m", "kaas.cli", "status", "--address", address], {"stdout": -1, "stderr": -1}
both = [subprocess.Popen(command, env=environment, text=True, **kept)
        for environment in (without, {**without, "RAY_AUTH_MODE": "token"})]
for process in both:
    out, err = process.communicate()
    print(process.returncode, "set RAY_AUTH_MODE=token" in err, "software" in out)
"""
ENDED = "kaas.shutdown()\nprint(ray.is_initialized())"


def run_with_tokens(program: str, home: Path) -> list[str]:
    """Return what a program prints whose Ray, started by init, has its default token authentication."""
    caches = str(cache_root().parent)  # those of the other home have no driver: its compilation would take longest
    environment = {"RAY_AUTH_MODE": "token", "HOME": str(home), "XDG_CACHE_HOME": caches, "RAY_ADDRESS": ""}
    return run_program(program, **environment).splitlines()


@pytest.mark.ray
def test_default_devices_and_authentication(tmp_path: Path) -> None:
    """Ray started by init, with its default token authentication, and no devices named."""
    assert run_with_tokens(ALONE + ENDED, tmp_path) == ["True ['software', 'software']", "False"]
    assert any(path.is_file() for path in tmp_path.rglob("*token*"))


@pytest.mark.ray
@pytest.mark.full
def test_a_command_without_the_token_names_it(tmp_path: Path) -> None:
    """Ray tries for 20 seconds before it says so."""
    printed = run_with_tokens(ALONE + COMMANDS + ENDED, tmp_path)
    assert printed[1:] == ["1 True False", "0 False True", "False"]


LOST_WITH_ITS_RAY = """
import ray, kaas
from tests.api.conftest import numbers, scale_task
kaas.init(devices=[kaas.Device("software", 16 << 20)])
n = 1 << 16
resident = ray.get(kaas.invoke(scale_task(n), {{"x": numbers(n)}}, scalars={{"factor": 2}}, keep=True))
kaas.shutdown()
for begin in (lambda: None, lambda: ray.init({address!r})):
    begin()
    started = ray.is_initialized()
    try:
        resident.get()
    except kaas.errors.ResultLost as error:
        print(type(error).__name__, started, ray.is_initialized())
"""


@pytest.mark.ray
@pytest.mark.full
def test_a_kept_output_is_lost_with_its_ray_and_starts_no_other_ray(cluster: str) -> None:
    """It does not count as an output of another Ray either."""
    printed = run_program(LOST_WITH_ITS_RAY.format(address=cluster))
    assert printed.splitlines()[-2:] == ["ResultLost False False", "ResultLost True True"]
