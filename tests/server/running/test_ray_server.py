"""`kaas serve` of a pool on Ray, which remote clients and Ray programs share: eTasks, and kills of processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from kaas.api.program import attach
from kaas.cli.serve import READY
from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE
from kaas.wire import protocol
from tests.server.servers import DEVICE, WIDTH, Server, refused, scaled, started
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.ray


NAME = "served"
ONES = np.ones(WIDTH, np.float32)
LARGE = 1 << 18
ARRAY = ["float32", [WIDTH]]
ETASKS: dict[str, Any] = {
    name: {"function": f"tests.server.running.etasks:{name}", "inputs": {"x": ARRAY}, "outputs": {"x": ARRAY}}
    for name in ("double", "fail", "wrong", "stall", "end")
}
ETASKS["sums"] = {
    "function": "tests.server.running.etasks:Sums",
    "inputs": {"x": ["float32", [LARGE]], "y": ["float32", [LARGE]]},
    "outputs": {"sum": ["float32", [LARGE]], "about": ["int64", [2]]},
    "clients": ["alice"],
}
ETASKS["from_text"] = {**ETASKS["double"], "before": "from_text", "after": "halves", "outputs": {"y": ARRAY}}
STEPS = {name: f"tests.server.steps.functions:{name}" for name in ("from_text", "halves")}


def settings() -> dict[str, Any]:
    return {
        "name": NAME,
        "ray": ray.get_runtime_context().gcs_address,
        "etasks": ETASKS,
        "steps": STEPS,
        "pool": {"devices": [DEVICE, DEVICE], "run_limit_s": 10.0, "etask_workers": 2},
    }


def served(folder: Path) -> Server:
    return Server(folder, settings())


@pytest.fixture(scope="module")
def server(own_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:  # noqa: ARG001 - none runs
    ray.init("local", resources={SOFTWARE_RESOURCE: 4}, include_dashboard=False)
    server = served(tmp_path_factory.mktemp("server"))
    attach(NAME)
    yield server
    server.close()


@pytest.fixture
def alice(server: Server) -> Iterator[kaas.Client]:
    with kaas.Client(server.endpoint, keys=server.key_of("alice"), patience_s=TIMEOUT_S) as client:
        yield client


def test_both_kinds_of_clients_share_one_pool(alice: kaas.Client) -> None:
    function = alice.register(scaled(3.0), name="triple")
    assert (alice.call(function, {"x": ONES}).result(TIMEOUT_S) == 3).all()
    assert (ray.get(kaas.invoke(scaled(), {"x": ONES}), timeout=TIMEOUT_S) == 2).all()
    clients = {row.client for row in kaas.stats().outcomes}
    assert "alice" in clients
    assert len(clients) > 1


def test_constants_and_objects_are_the_pools(alice: kaas.Client) -> None:
    large = np.arange(LARGE, dtype=np.float32)
    put = alice.put("large", large)
    doubled = alice.call(scaled(2.0, LARGE), {"x": put}, store={"y": "doubled"})
    assert doubled.result(TIMEOUT_S).name == "doubled"
    assert (alice.get("doubled") == 2 * large).all()
    bound = alice.register(scaled(4.0, LARGE), {"x": put}, name="bound")
    assert (alice.call(bound).result(TIMEOUT_S) == 4 * large).all()


def test_an_etask_is_called_as_a_function_is(alice: kaas.Client) -> None:
    listed = {entry["name"]: entry for entry in alice.functions()}
    assert listed["double"]["inputs"] == {"x": ["float32", [WIDTH]]}
    assert listed["double"]["etask"]
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()
    used = {flow["function"]: flow for flow in alice.usage()["flows"]}
    assert used["double"]["device_ns"] > 0
    assert used["double"]["outcomes"] == {"succeeded": 1}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tests.server.nowhere:f", "No module named 'tests.server.nowhere'"),
        (
            "tests.server.running.etasks:nothing",
            "module 'tests.server.running.etasks' has no function or class 'nothing'",
        ),
    ],
)
@pytest.mark.full
def test_a_missing_etask_function_is_refused_and_the_pool_still_runs(
    target: str, said: str, alice: kaas.Client, tmp_path: Path
) -> None:
    etasks = {**ETASKS, "device": {**ETASKS["double"], "function": "tests.server.steps.broken:f"}}  # it may want one
    etasks["bad"] = {**ETASKS["double"], "function": target}
    assert f"InvalidConfig: etasks.bad.function is {target!r}: {said}\n" in refused(
        tmp_path, {**settings(), "etasks": etasks}
    )
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()


def stand_in(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings with one eTask, of a module that servers find. code: the code of the module."""
    (folder / "stand_in.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    return {**settings(), "etasks": {"it": {**ETASKS["double"], "function": "stand_in:f"}}}


@pytest.mark.full
def test_a_module_that_ends_its_process_is_imported_once(
    alice: kaas.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = tmp_path / "times"
    code = f"import os\nopen({str(times)!r}, 'a').write('.')\nos._exit(3)"
    said = refused(tmp_path, stand_in(tmp_path, code, monkeypatch))
    assert "InvalidConfig: the modules of eTasks cannot be imported: " in said
    assert "Traceback" not in said
    assert times.read_text() == "."
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()


@pytest.mark.full
def test_a_signal_while_modules_are_imported(
    alice: kaas.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    code = f"import os, threading\nopen({str(begun)!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()"
    process = started(tmp_path, stand_in(tmp_path, code, monkeypatch), subprocess.PIPE)
    importing = int(begun.read_text())
    process.terminate()
    assert READY.encode() not in process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode == 0
    until(lambda: not Path(f"/proc/{importing}").exists())
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()


def test_an_etask_takes_large_values_and_keeps_its_state(alice: kaas.Client) -> None:
    x = np.arange(LARGE, dtype=np.float32)
    first = alice.call("sums", {"x": x, "y": x}).result(TIMEOUT_S)
    put = alice.put("x", x)
    second = alice.call("sums", {"x": put, "y": x}, store={"sum": "total"}).result(TIMEOUT_S)
    assert (first.sum == 2 * x).all()
    assert (first.about[0], second.about[0]) == (1, 2)
    assert first.about[1] == second.about[1]
    assert (alice.get("total") == 2 * x).all()


def test_a_client_does_not_see_an_etask_that_it_may_not_use(server: Server) -> None:
    with kaas.Client(server.endpoint, keys=server.key_of("bob"), patience_s=TIMEOUT_S) as bob:
        assert "sums" not in {entry["name"] for entry in bob.functions()}
        with pytest.raises(errors.UnknownFunction):
            bob.call("sums", {"x": np.zeros(LARGE, np.float32), "y": np.zeros(LARGE, np.float32)})
        assert (bob.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()


@pytest.mark.full
def test_an_error_of_an_etask_is_reported_without_the_servers_files(server: Server, alice: kaas.Client) -> None:
    with pytest.raises(errors.ETaskFailed) as caught:
        alice.call("fail", {"x": ONES}).result(TIMEOUT_S)
    assert caught.value.error_type == "LookupError"
    assert f"no {WIDTH}" in caught.value.message
    folder = __file__.rpartition("/")[0]
    assert folder not in str(vars(caught.value))
    until(lambda: "an eTask raised" in server.errors.read_text())
    until(lambda: f"{folder}/etasks.py" in server.errors.read_text().partition("an eTask raised")[2])  # its traceback
    with pytest.raises(errors.ETaskFailed):
        alice.call("wrong", {"x": ONES}).result(TIMEOUT_S)
    with pytest.raises(errors.ExecutorDied):
        alice.call("end", {"x": ONES}).result(TIMEOUT_S)
    with pytest.raises(errors.WrongSize):
        alice.call("double", {"x": ONES[:3]})


def test_a_deadline_releases_the_caller(alice: kaas.Client) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        alice.call("stall", {"x": ONES}, deadline_s=2.0).result(TIMEOUT_S)


def test_a_stalled_etask_can_be_cancelled(alice: kaas.Client) -> None:
    future = alice.call("stall", {"x": ONES})
    assert future.cancel()


@pytest.mark.full
def test_steps_stand_around_an_etask(server: Server) -> None:
    speaker = server.speaker("alice")
    text = b"1 " * WIDTH
    number = speaker.number()
    speaker.send(
        protocol.Invoke(number, "from_text", {"text": protocol.Input(frame=1)}, store={"first": "kept"}),
        text,
    )
    answer, frames = speaker.receive()
    assert isinstance(answer, protocol.Result), answer
    assert answer.outputs == ("rest",)
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    value, _ = speaker.reply_to(protocol.Value, protocol.Get(speaker.number(), "kept"))
    assert (value.dtype, tuple(value.shape)) == ("float32", (2, WIDTH // 4))
    speaker.close()


def test_the_pools_process_is_killed(alice: kaas.Client) -> None:
    function = alice.register(scaled(5.0), name="five")
    alice.put("kept", ONES)
    killed = kaas.status().pid
    futures = [alice.call(function, {"x": ONES}, key=f"request {number}") for number in range(100)]
    os.kill(killed, signal.SIGKILL)
    for future in futures:
        assert (future.result(TIMEOUT_S) == 5).all()
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()
    assert (alice.get("kept") == 1).all()
    assert kaas.status().pid != killed


def test_a_server_that_ends_leaves_no_pool_of_its_own(server: Server, alice: kaas.Client) -> None:
    assert (alice.call("double", {"x": ONES}).result(TIMEOUT_S) == 2).all()
    x = np.arange(LARGE, dtype=np.float32)
    alice.put("about", alice.call("sums", {"x": x, "y": x}, key="once").result(TIMEOUT_S).about)
    server.terminate()
    assert server.wait() == 0
    with pytest.raises(ValueError, match=NAME):
        ray.get_actor(NAME, namespace="kaas")


@pytest.mark.full
def test_a_killed_server_ends_with_its_listener_and_leaves_the_pool(server: Server) -> None:
    """The next server finds the reply of the earlier one."""
    x = np.arange(LARGE, dtype=np.float32)
    first = served(server.folder)
    with kaas.Client(first.endpoint, keys=first.key_of("alice"), patience_s=TIMEOUT_S) as alice:
        assert (alice.call("five", {"x": ONES}).result(TIMEOUT_S) == 5).all()
        told = alice.call("sums", {"x": x, "y": x}, key="once").result(TIMEOUT_S)
        assert (told.about == alice.get("about")).all()  # the stored reply: it is not run again
    pool = ray.get_actor(NAME, namespace="kaas")
    first.process.kill()
    second = served(server.folder)
    with kaas.Client(second.endpoint, keys=second.key_of("alice"), patience_s=TIMEOUT_S) as alice:
        assert (alice.call("five", {"x": ONES}).result(TIMEOUT_S) == 5).all()
    second.terminate()
    assert second.wait() == 0
    assert ray.get_actor(NAME, namespace="kaas") == pool
    first.close()
    second.close()
