"""`kaas serve` from outside: it starts, reports that, replies, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

import kaas
from kaas.errors import InvalidConfig
from kaas.scheduling.policies import factory
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.exclusive import Exclusive
from kaas.scheduling.simulation.scenario_file import read as read_scenario
from kaas.scheduling.simulation.simulator import simulate
from kaas.server.config.serve_config import LimitSettings, parse, read
from kaas.server.running import process_server
from kaas.server.usage.quotas import Quotas
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys
from kaas.worker.processes import pidfd
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32).tobytes()


def result_of(frame: bytes) -> Any:
    return np.frombuffer(frame, np.float32)


def test_a_terminated_server_first_replies_to_open_requests(serve: Serve) -> None:
    server = serve()
    speaker = server.speaker()
    speaker.register(scaled(), "f")
    numbers = [speaker.invoke("f", ONES) for _ in range(20)]
    speaker.send(protocol.Ask(100, "health"))
    answers: dict[int, protocol.FromServer] = {}
    while 100 not in answers:  # then all were taken in
        answer, _ = speaker.receive()
        answers[answer.number] = answer  # type: ignore[union-attr]
    server.terminate()
    while not answers.keys() >= {*numbers}:
        answer, frames = speaker.receive()
        if isinstance(answer, protocol.Result):
            assert (result_of(frames[0]) == 2).all()
        if not isinstance(answer, protocol.Goodbye):
            answers[answer.number] = answer  # type: ignore[union-attr]
    assert all(isinstance(answers[number], protocol.Result) for number in numbers)
    speaker.received(numbers)
    assert server.wait() == 0
    speaker.close()


def test_a_draining_server_accepts_no_requests(serve: Serve) -> None:
    server = serve({"administrators": ["boss"], "drain_s": 60})
    boss, other = server.speaker("boss"), server.speaker()
    other.register(scaled(), "f")
    waits = other.invoke("f", ONES)
    assert isinstance(other.receive()[0], protocol.Result)  # not received: the server waits for that
    refused = other.reply_to(protocol.Failure, protocol.Ask(90, "drain"))[0]
    assert refused.error == "InvalidRequest"
    boss.send(protocol.Ask(1, "drain"))
    came = [boss.receive()[0], boss.receive()[0]]
    assert {type(each) for each in came} == {protocol.Goodbye, protocol.Reply}
    goodbye = other.receive()[0]
    assert isinstance(goodbye, protocol.Goodbye)
    assert "boss" not in goodbye.reason
    assert "an administrator has the server drain client=boss\n" in server.errors.read_text()
    other.invoke("f", ONES, number=91)
    answer, _ = other.receive()
    assert isinstance(answer, protocol.Failure)
    assert (answer.number, answer.error) == (91, "PoolStopped")
    assert answer.retry_s
    assert not other.ask("health")["ready"]
    other.received([waits])
    assert server.wait() == 0
    boss.close()
    other.close()


def test_a_server_drains_no_longer_than_its_limit(serve: Serve) -> None:
    server = serve({"drain_s": 0.1})
    speaker = server.speaker()
    speaker.register(scaled(), "f")
    speaker.invoke("f", ONES)
    speaker.receive()
    server.terminate()
    assert server.wait() == 0  # though the answer was never received
    speaker.close()


def test_executors_end_with_their_server(serve: Serve) -> None:
    server = serve()
    speaker = server.speaker()
    assert speaker.ask("health", b"canary")["canary_s"] < TIMEOUT_S
    watched = [pidfd(pid) for pid in server.children()]
    assert watched
    server.process.kill()
    poller = zmq.Poller()
    for file in filter(None, watched):
        poller.register(file, zmq.POLLIN)
        assert poller.poll(int(TIMEOUT_S * 1000))
        poller.unregister(file)
        os.close(file)
    speaker.close()


def test_functions_outlive_their_server(serve: Serve) -> None:
    first = serve()
    speaker = first.speaker()
    life = speaker.greet().life
    speaker.register(scaled(), "f")
    first.process.kill()
    first.close()
    speaker.close()
    second = serve()
    speaker = second.speaker()
    assert speaker.greet().life != life
    speaker.invoke("f", ONES)
    answer, frames = speaker.receive()
    assert isinstance(answer, protocol.Result)
    assert (result_of(frames[0]) == 2).all()
    speaker.close()


@pytest.fixture(scope="module")
def without_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It ends as by Ctrl-C."""
    server = Server(tmp_path_factory.mktemp("without_keys"), insecure=True)
    yield server
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    server.close()


def test_programs_on_a_servers_machine_attach_to_its_pool(without_keys: Server) -> None:
    program = """
import sys
from kaas.api.program import attach, status
attach(sys.argv[1], ray=False)
print(len(status().devices))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, without_keys.name]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "1\n"


def test_a_second_server_of_one_name_is_refused(without_keys: Server) -> None:
    config = without_keys.folder / "kaas.yaml"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "kaas.cli", "serve", "--insecure", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 1
    assert "runs on this machine already" in ended.stderr


@pytest.mark.parametrize(
    ("field", "text"), [("listen.port", "listen: {port: %d}"), ("metrics_port", "metrics_port: %d")]
)
def test_a_port_that_another_program_uses_is_refused_before_a_device_starts(
    field: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("devices start")

    monkeypatch.setattr(process_server, "Machine", started)
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = tmp_path / "kaas.yaml"
        config.write_text(f"name: taken_{os.getpid()}\n{text % other.getsockname()[1]}\n")
        with pytest.raises(InvalidConfig, match="Address already in use") as caught:
            asyncio.run(process_server.serve(read(config, insecure=True), print))
    assert caught.value.field == field


def test_a_server_without_keys_logs_that_it_is_insecure(without_keys: Server) -> None:
    speaker = without_keys.speaker()
    assert speaker.greet().client == "local"
    assert "INSECURE" in without_keys.errors.read_text()
    speaker.close()


def test_an_unknown_key_gets_nothing(server: Server) -> None:
    keys = server.key_of("alice")
    assert keys is not None
    public, secret = (key.decode() for key in zmq.curve_keypair())
    peer = Speaker(server.endpoint, OwnKeys("alice", public, secret, keys.server_key))
    peer.send(protocol.Hello(protocol.VERSION, "a" * 32))
    speaker = server.speaker()
    assert speaker.ask("health", b"canary")["live"]
    assert not peer.socket.poll(0)
    peer.close()
    speaker.close()


# --- its configuration


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"colour: red", "colour"),
        (b"pool: {colour: red}", "pool.colour"),
        (b"listen: {port: many}", "listen.port"),
        (b"limits: {requests: many}", "limits.requests"),
        (b"pool: {devices: [{kind: software, colour: red}]}", "pool.devices[0].colour"),
        (b"pool: {clients: {ada: {wieght: 2}}}", "pool.clients.ada.wieght"),
        (b"]", ""),
    ],
)
def test_a_setting_that_cannot_be_parsed_is_named(text: bytes, field: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("listen: {host: 0.0.0.0}", "listen.host"),
        ("listen: {host: everywhere}", "listen.host"),
        ("listen: {port: 65536}", "listen.port"),
        ("limits: {credit_bytes: 0}", "limits.credit_bytes"),
        ("drain_s: -1", "drain_s"),
        ("metrics_port: 65536", "metrics_port"),
        ("metrics_port: -1", "metrics_port"),
        ("{metrics_port: 7500, listen: {port: 7500}}", "metrics_port"),
        ("name: ''", "name"),
        ("pool: {slots: 0}", "pool.slots"),
        ("code: {signers: [xyz]}", "code.signers"),
        ("keys: somewhere", "keys"),
        ("etasks: {e: {function: 'm:f', inputs: {}, outputs: {}}}", "etasks"),
        ("{ray: true, etasks: {e: {function: f, inputs: {}, outputs: {y: [int8, [1]]}}}}", "etasks.e.function"),
        ("{ray: true, etasks: {e: {function: 'm:f', inputs: {}, outputs: {y: [int9, [1]]}}}}", "etasks.e"),
        ("{ray: true, etasks: {e: {function: 'm:f', inputs: {}, outputs: {}}}}", "etasks.e"),
        ("{ray: true, etasks: {e: {function: 'm:f', inputs: {}, outputs: {y: [int8, [1]]}, after: s}}}", "etasks.e"),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "kaas.yaml"
    path.write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        read(path, insecure=True)
    assert caught.value.field == field


def test_a_server_needs_keys_unless_it_is_insecure(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(None)
    assert caught.value.field == "keys"
    assert read(None, insecure=True).code.any
    with pytest.raises(InvalidConfig):
        read(tmp_path / "nowhere.yaml", insecure=True)


def test_quotas_of_a_key_override_those_of_the_server() -> None:
    limits = LimitSettings(quotas=Quotas(requests_per_s=5.0, burst=50, stored_bytes=100))
    granted = limits.granted(Quotas(requests_per_s=1.0, concurrent_requests=3))
    others: dict[str, Any] = {
        "library_bytes": 256 << 20,
        "kernels": 1 << 16,
        "task_kernels": 8192,
        "build_s_per_minute": 30.0,
    }
    assert granted == Quotas(requests_per_s=1.0, concurrent_requests=3, stored_bytes=100, **others)
    told = limits.reported(granted)
    assert (told.requests, told.requests_per_s, told.stored_bytes) == (3, 1.0, 100)


def test_the_pool_of_a_server_is_as_configured() -> None:
    settings = parse(b"pool: {policy: static, slots: 2, devices: [{speed: 2.0}], clients: {alice: {weight: 2.0}}}")
    config = settings.pool.config(None)
    assert config == kaas.Config(
        devices=(kaas.Device(speed=2.0),),
        policy="static",
        slots=2,
        isolation="auto",
        clients={"alice": kaas.ClientSettings(weight=2.0)},
        client_faults_allowed=8,
    )


def test_beside_a_client_that_floods_a_server_a_request_waits_about_one_run() -> None:
    flood = [{"function": "flood", "at_s": 0.0}] * 400
    polite = [{"function": "polite", "at_s": 0.5 + 0.4 * number} for number in range(10)]
    told = {
        "policy": parse(b"{}").pool.policy,
        "devices": [{"memory_mb": 64}] * 4,
        "functions": {
            name: {"memory_mb": 1, "load_s": 0.0, "run_s": 0.05, "client": name} for name in ("flood", "polite")
        },
        "requests": [*flood, *polite],
    }
    clients = simulate(read_scenario(told)).summary.per_client
    assert clients["polite"].mean_latency_s < 3 * 0.05
    assert clients["flood"].mean_latency_s > 2.0


def test_the_policy_of_a_server_has_options_or_is_the_operators_own() -> None:
    told = parse(b"pool: {policy: {name: cfs_affinity, penalty: 5.0}}").pool.config(None).policy
    assert isinstance(told, partial)
    assert (told.func, told.keywords) == (CfsAffinity, {"penalty": 5.0})
    own = parse(b'pool: {policy: "kaas.scheduling.policies.exclusive:Exclusive"}').pool.config(None).policy
    assert own is Exclusive
    with pytest.raises(InvalidConfig) as caught:
        parse(b"pool: {policy: fair}").pool.config(None)
    assert caught.value.field == "pool.policy"


def test_the_documented_configuration_is_valid_and_complete() -> None:
    page = (ROOT / "docs" / "serve.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    settings = parse(text.encode())
    factory(settings.pool.config(None).policy)  # there is one
    assert {*settings.__struct_fields__} == {*msgspec.yaml.decode(text)}  # all that there is
