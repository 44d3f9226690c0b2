"""On a GPU: a pool's answers, with Ray and without it, and an eTask on the same GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

import kaas
from tests.gpu import stored

pytestmark = pytest.mark.gpu

AT_ONCE = 40


@pytest.fixture(scope="module", params=["without Ray", "on Ray"])
def pool(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the kind of the pool, which has the machine's GPUs."""
    on_ray = request.param == "on Ray"
    if on_ray and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    assert kaas.init(ray=on_ray, name=f"gpu-{request.param.replace(' ', '-')}")
    yield str(request.param)
    kaas.shutdown()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("name", stored.names())
def test_answers_are_those_of_the_software_gpu(name: str) -> None:
    case = stored.load(name)
    futures = [kaas.call(case.task, case.inputs, scalars=case.scalars) for _ in range(AT_ONCE)]
    for future in futures:
        stored.assert_answer(future.result(), case)


def test_an_etask_has_the_gpu_between_ktasks(pool: str) -> None:
    if pool != "on Ray":
        pytest.skip("eTasks need Ray")
    import ray

    @kaas.etask
    def name_of_the_device() -> str:
        from cuda.bindings import driver

        driver.cuInit(0)
        return bytes(driver.cuDeviceGetName(256, 0)[1]).split(b"\0")[0].decode()

    case = stored.load("sobel")
    for _ in range(2):
        kaas.call(case.task, case.inputs).result()
        assert "NVIDIA" in ray.get(name_of_the_device.remote())


def test_an_etask_reads_constants_where_the_holder_has_them(pool: str) -> None:
    if pool != "on Ray":
        pytest.skip("eTasks need Ray")
    import ray

    @kaas.etask
    def answer(task: kaas.KTask, function: kaas.Function, inputs: Any, scalars: Any) -> Any:
        return kaas.run_local(task, {**inputs, **kaas.device_constants(function)}, scalars=scalars)

    case = stored.load("sobel")
    name, *others = case.inputs
    function = kaas.register(case.task, {name: case.inputs[name]})
    rest = {other: case.inputs[other] for other in others}
    for client in ("alice", "bob"):
        (output, *_) = ray.get(answer.options(client=client).remote(case.task, function, rest, case.scalars)).values()
        stored.assert_answer(output, case)
