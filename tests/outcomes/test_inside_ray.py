"""All of kaas works in a program's Ray tasks and actors too, without a call of `kaas.init` there."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas.api.attached import current_session
from kaas.api.session import HERE, program_name
from tests.api.conftest import add_task, both_task, numbers, scale_task
from tests.lanes import spread
from tests.reference import LITERALS
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
NAME = "inside ray"
"""The pool's name: not the default, which a task could guess."""


@pytest.fixture(scope="module", autouse=True)
def pool(start: Callable[..., bool]) -> None:
    start(devices=[kaas.Device("software", 64 << 20)] * 2, name=NAME)


# --- functions that a program may call, each time in a process that has called nothing of kaas yet


def invoke() -> Any:
    return ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 3}))


def call() -> Any:
    return kaas.call(scale_task(), {"x": numbers()}, scalars={"factor": 3}).result(TIMEOUT_S)


def register() -> Any:
    function = kaas.register(add_task(), {"a": numbers() * 2})
    return ray.get(function.remote(b=numbers()))


def put() -> Any:
    ref = kaas.put(numbers())
    return kaas.call(scale_task(), {"x": ref}, scalars={"factor": 3}).result(TIMEOUT_S)


def prefetch() -> Any:
    ray.get(kaas.prefetch(ray.put(numbers())))
    return call()


def pin() -> Any:
    ref = ray.put(numbers())
    kaas.pin(ref)
    kaas.unpin(ref)
    return call()


def unpin() -> Any:
    kaas.unpin()
    return call()


def flush() -> Any:
    kaas.flush()
    return call()


def pardon() -> Any:
    assert not kaas.pardon(scale_task())
    return call()


def set_share() -> Any:
    kaas.set_share("alice", kaas.Share(quota=(0.1, 0.5)))
    assert "client 'alice'" in [each.of for each in kaas.status().shares]
    kaas.set_share("alice", None)
    return call()


def stats() -> Any:
    assert kaas.stats().stages is not None
    return call()


def status() -> Any:
    assert kaas.status().pool == NAME
    return call()


@kaas.etask
def triple(x: Any) -> Any:
    return x * np.float32(3)


def etask() -> Any:
    return ray.get(triple.remote(numbers()))


@kaas.etask
def added(function: kaas.Function, b: Any) -> Any:
    return kaas.run_local(add_task(), {**kaas.device_constants(function), "b": b})["c"]


def device_constants() -> Any:
    return ray.get(added.remote(kaas.register(add_task(), {"a": numbers() * 2}), numbers()))


def init() -> Any:
    assert not kaas.init(name=NAME)
    return call()


def run_local() -> Any:
    return kaas.run_local(scale_task(), {"x": numbers()}, scalars={"factor": 3})["y"]


def model() -> Any:
    task = add_task()
    registered = kaas.CompiledModel("sum", [kaas.Variant(task, task.inputs)], {}).register()
    return ray.get(registered.remote(numbers() * 2, numbers()))


CALLS = [
    *(
        invoke,
        call,
        register,
        put,
        prefetch,
        pin,
        unpin,
        flush,
        pardon,
        set_share,
        stats,
        status,
        etask,
        device_constants,
        init,
        run_local,
    ),
    model,
]


def test_every_public_function_is_among_them() -> None:
    """All calls but `shutdown`, which ends the pool for all, and `cache_root`, which needs no pool."""
    functions = {name for name in kaas.__all__ if inspect.isfunction(getattr(kaas, name))} - {*LITERALS}
    assert functions - {work.__name__ for work in CALLS} == {"shutdown", "cache_root"}


def fresh(work: Callable[[], Any]) -> Any:
    """Run it in this process, if it is not attached to a pool."""
    assert HERE.session is None
    return work()


def own_process() -> dict[str, Any]:
    """The `runtime_env` of a process that no earlier test has used."""
    return {"env_vars": {"KAAS_TEST_PROCESS": token_hex(8)}}


@pytest.mark.parametrize("work", spread(CALLS, 1), ids=lambda work: str(work.__name__))
def test_in_a_task(work: Callable[[], Any]) -> None:
    """Run each in its own process, which ends with it."""
    task: Any = ray.remote(max_calls=1, num_cpus=0, runtime_env=own_process())(fresh)
    np.testing.assert_allclose(ray.get(task.remote(work), timeout=TIMEOUT_S), numbers() * 3, rtol=1e-6)


def each_fresh() -> dict[str, Any]:
    """Return the results of CALLS in this process. Each attaches by itself: the attachment of the last is removed."""
    values = {}
    for work in CALLS:
        values[work.__name__] = fresh(work)
        HERE.session = None
    return values


def check(values: dict[str, Any]) -> None:
    assert list(values) == [work.__name__ for work in CALLS]
    for name, value in values.items():
        np.testing.assert_allclose(value, numbers() * 3, rtol=1e-6, err_msg=name)


class Actor:
    """Its process is its own, and fresh."""

    def run(self) -> dict[str, Any]:
        return each_fresh()


def test_in_an_actor() -> None:
    actor: Any = ray.remote(num_cpus=0, runtime_env=own_process())(Actor).remote()
    check(ray.get(actor.run.remote(), timeout=TIMEOUT_S))


def test_in_a_nested_task() -> None:
    @ray.remote(max_calls=1, num_cpus=0)
    def outer() -> Any:
        inner: Any = ray.remote(max_calls=1, num_cpus=0, runtime_env=own_process())(each_fresh)
        return ray.get(inner.remote())

    check(ray.get(outer.remote(), timeout=TIMEOUT_S))


def client() -> str:
    return current_session().client


def test_all_of_a_program_is_one_client_with_its_scripts_name() -> None:
    own = current_session().client
    assert own == f"{program_name()} job {ray.get_runtime_context().get_job_id()}"
    task: Any = ray.remote(max_calls=1, num_cpus=0, runtime_env=own_process())(fresh)
    assert ray.get(task.remote(client), timeout=TIMEOUT_S) == own


# --- async actors


class AsyncActor:
    """Note the messages of Ray's own module while the first call is awaited."""

    def __init__(self) -> None:
        self._said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("ray._private.worker").addHandler(handler)

    async def run(self, function: kaas.Function | None) -> tuple[Any, list[str]]:
        if function is not None:
            return await function.call(x=numbers(), factor=3), self._said
        return await kaas.call(scale_task(), {"x": numbers()}, scalars={"factor": 3}), self._said

    async def blocks(self) -> list[str]:
        ray.get(ray.put(1))
        return self._said

    async def work(self) -> dict[str, Any]:
        return each_fresh()


@pytest.mark.parametrize("registered", [True, False])
def test_an_async_actors_first_call(registered: bool) -> None:
    actor: Any = ray.remote(num_cpus=0)(AsyncActor).remote()
    function = kaas.register(scale_task()) if registered else None
    value, said = ray.get(actor.run.remote(function), timeout=TIMEOUT_S)
    np.testing.assert_allclose(value, numbers() * 3, rtol=1e-6)
    assert said == []


def test_a_warning_of_ray_about_a_blocked_loop_would_be_noticed() -> None:
    actor: Any = ray.remote(num_cpus=0)(AsyncActor).remote()
    (said,) = ray.get(actor.blocks.remote(), timeout=TIMEOUT_S)
    assert "blocking ray.get" in said


def test_in_an_async_actor() -> None:
    """Calls that must wait may wait there too."""
    actor: Any = ray.remote(num_cpus=0, runtime_env=own_process())(AsyncActor).remote()
    check(ray.get(actor.work.remote(), timeout=TIMEOUT_S))


def test_an_attaching_process_imports_only_modules_for_callers() -> None:
    """A first call imports its modules, for example in an event loop, in a short time."""
    program = "import sys, kaas.api.function, kaas.api.ray_session, kaas.api.rpc_client; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    brought = {
        "kaas.pool.service",
        "kaas.pool.core.core",
        "kaas.scheduling.policies",
        "kaas.executor.device.device",
        "cuda",
        "zmq",
    }
    assert not brought & set(ended.stdout.split())


def test_a_loop_does_not_wait_for_the_connection_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool's address comes only after the loop has gone on."""
    from kaas.api.ray_session import RaySession

    session = HERE.session
    assert isinstance(session, RaySession)
    told = RaySession.address

    async def first_call() -> Any:
        went_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def late(self: RaySession) -> Any:
            asyncio.run_coroutine_threadsafe(went_on.wait(), loop).result(TIMEOUT_S)
            return told(self)

        monkeypatch.setattr(RaySession, "address", late)
        other = RaySession.to(NAME, session.pool)
        monkeypatch.setattr(HERE, "session", other)
        future = kaas.call(scale_task(), {"x": numbers()}, scalars={"factor": 3})
        went_on.set()
        return await future

    np.testing.assert_allclose(asyncio.run(first_call()), numbers() * 3, rtol=1e-6)


# --- DAGs


def test_functions_in_a_dag() -> None:
    from ray.dag import InputNode, MultiOutputNode

    @ray.remote(num_cpus=0)
    def total(x: Any) -> float:
        return float(x.sum())

    scale, add = kaas.register(scale_task()), kaas.register(add_task(), {"a": numbers()})
    with InputNode() as x:
        scaled = scale.bind(x, factor=3)
        dag: Any = MultiOutputNode([total.bind(scaled), add.bind(b=scaled)])
    for factor in (1, 2):
        summed, added = ray.get(dag.execute(numbers() * np.float32(factor)))
        np.testing.assert_allclose(added, numbers() * (1 + 3 * factor), rtol=1e-5)
        assert summed == pytest.approx(float((numbers() * 3 * factor).sum()), rel=1e-4)


def test_a_function_of_several_outputs_in_a_dag() -> None:
    outputs = kaas.register(both_task()).bind(x=numbers()).execute()
    np.testing.assert_allclose(ray.get(outputs.double), numbers() * 2)
    np.testing.assert_allclose(ray.get(outputs.quadruple), numbers() * 4)
