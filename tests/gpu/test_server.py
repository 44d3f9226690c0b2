"""A client of `kaas serve`, whose executor is in its sandbox, gets what the software GPU computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kaas
from kaas.worker import sandbox
from tests.gpu import stored
from tests.gpu.conftest import why_no_gpu
from tests.server.servers import DEVICE, Server

pytestmark = pytest.mark.processes

AT_ONCE = 8


@pytest.fixture(scope="module", params=[pytest.param("gpu", marks=pytest.mark.gpu), "software"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with one device of each kind that this machine has."""
    if request.param == "gpu" and (why := why_no_gpu()):
        pytest.skip(why)
    device = {"kind": "gpu"} if request.param == "gpu" else DEVICE
    server = Server(tmp_path_factory.mktemp("server"), {"pool": {"devices": [device]}})
    yield server
    server.close()


@pytest.fixture
def client(server: Server) -> Iterator[kaas.Client]:
    with kaas.Client(server.endpoint, keys=server.folder / "alice.keys") as client:
        yield client


@pytest.mark.parametrize("name", stored.names())
def test_answers_are_those_of_the_software_gpu(client: kaas.Client, name: str) -> None:
    case = stored.load(name)
    futures = [client.call(case.task, case.inputs, scalars=case.scalars) for _ in range(AT_ONCE)]
    for future in futures:
        stored.assert_answer(future.result(), case)


def test_the_executor_is_in_its_sandbox(server: Server, client: kaas.Client) -> None:
    if not sandbox.available():
        pytest.skip("this Linux has no Landlock")
    case = stored.load("sobel")
    client.call(case.task, case.inputs).result()
    states = [Path(f"/proc/{pid}/status").read_text() for pid in server.children()]
    assert any("Seccomp:\t2" in state for state in states), states  # with a filter
