"""`kaas serve` in a process of its own, with the workloads as kTasks and as eTasks, and clients that call them.

The setting of Figure 9: clients send requests over ZeroMQ to a server on Ray, and a request runs through a step, the
device, and another step.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.client import Client
from kaas.errors import DeviceUnavailable, WrongAnswer
from kaas.papers.workloads import WORKLOADS, Workload
from kaas.scheduling.comparing.parent_end import end_with_parent
from kaas.server.clients.keys import new_client

if TYPE_CHECKING:
    from kaas.client.remote_function import RemoteFunction
    from kaas.papers.testbed import Testbed

STEP_PROCESSES = 16
"""Enough for all steps that are under way at the highest rate: 10 of resnet50 (10 ms for each 1 ms of four devices)."""
SLOTS = 2
STORED_BYTES = 2 * max(each.constant_bytes for each in WORKLOADS.values())
"""A client's quota: the constants of a replica, which a network's compiler may pad."""
BUILD_S_PER_MINUTE = 600.0
"""A client's quota: a provider may compile kernels on several processors at a time."""
STOP_S = 60.0
TOLERANCE = 1e-3
"""Of a result, relative to it if it is larger than one."""

_ADDRESS = re.compile(r"tcp://\S+:\d+")


@dataclass(frozen=True, slots=True)
class Replicas:
    """Clients of a workload, each with its own function. A number stands for a replica, modulo their count.

    Fields:
        calls: of the replicas' functions. answers: the first element of each replica's results. warmed: the replicas
            that have been warm.
    """

    workload: Workload
    inputs: Mapping[str, Any]
    calls: tuple[Callable[..., Any], ...]
    answers: tuple[float, ...]
    warmed: set[int] = field(default_factory=set)

    def first(self, count: int) -> Replicas:
        """Return the first of the replicas."""
        return replace(self, calls=self.calls[:count], answers=self.answers[:count])

    def send(self, number: int) -> Any:
        """Send a replica's request, and return its future."""
        return self.calls[number % len(self.calls)](**self.inputs)

    def check(self, number: int, result: Any) -> None:
        """Check a replica's result.

        Raises:
            WrongAnswer
        """
        import numpy as np

        replica = number % len(self.calls)
        found = float(np.frombuffer(result["score"], np.float32)[0] if self.workload.steps else result.flat[0].real)
        if abs(found - self.answers[replica]) > TOLERANCE * max(1.0, abs(self.answers[replica])):
            raise WrongAnswer(f"{self.workload.name}, replica {replica}: {found} is not {self.answers[replica]}")

    def warm(self, least: int, again: int) -> None:
        """Send a request of each replica that has not been warm, at once: each device compiles, or starts a process.

        What an earlier load left under way has ended then.

        Args:
            least: the least number of requests, some of replicas that have been warm.
            again: the number of requests if all have been warm.
        """
        new = [number for number in range(len(self.calls)) if number not in self.warmed]
        numbers = [*new, *range(max(0, least - len(new)))] if new else range(again)
        for number, each in zip(numbers, [self.send(number) for number in numbers], strict=True):
            self.check(number, each.result())
        self.warmed.update(new)


@dataclass(frozen=True, slots=True)
class ExperimentServer:
    """A running server with one policy.

    Fields:
        policy: of the pool. keys: the file of each client's keys, as many as there may be replicas.
    """

    address: str
    policy: str
    testbed: Testbed
    keys: tuple[Path, ...]

    @contextmanager
    def ktasks(self, workload: Workload, replicas: int) -> Iterator[Replicas]:
        """Register a kTask for each replica: each is a client's, with constants of its own."""
        task = self.testbed.task(workload)
        values = [number + 1.0 for number in range(replicas)]
        with self._clients(replicas) as clients:
            functions = [
                client.register(
                    task,
                    self.testbed.constants(workload, value),
                    before=workload.step("before"),
                    after=workload.step("after"),
                )
                for client, value in zip(clients, values, strict=True)
            ]
            yield self.replicas(workload, functions, values)
            for client, function in zip(clients, functions, strict=True):
                client.unregister(function)

    @contextmanager
    def etasks(self, workload: Workload, replicas: int) -> Iterator[Replicas]:
        """Give the eTask to each replica: each client has a process of its own."""
        with self._clients(replicas) as clients:
            functions = [client.function(workload.name) for client in clients]
            yield self.replicas(workload, functions, [1.0] * replicas)

    def replicas(self, workload: Workload, functions: Sequence[RemoteFunction], values: Sequence[float]) -> Replicas:
        """Return replicas with these functions and values."""
        calls = tuple(function.call for function in functions)
        answers = tuple(self.testbed.answer(workload, value) for value in values)
        return Replicas(workload, self.testbed.inputs(workload), calls, answers)

    @contextmanager
    def _clients(self, count: int) -> Iterator[list[Client]]:
        with ExitStack() as closing:
            yield [closing.enter_context(Client(self.address, keys=keys)) for keys in self.keys[:count]]


@contextmanager
def serve(
    folder: Path, policy: str, testbed: Testbed, clients: int, etask_workers: int = 1
) -> Iterator[ExperimentServer]:
    """Run a server until the end of the block.

    Args:
        folder: of its keys, state and log; a new one.
        policy: of its pool.
        testbed: its devices, and its eTasks and steps.
        clients: the number of its clients.
        etask_workers: the most processes of eTasks on a device.

    Raises:
        DeviceUnavailable: the server does not start.
    """
    names = [f"replica-{number}" for number in range(clients)]
    keys = tuple(folder / f"{name}.toml" for name in names)
    for name, file in zip(names, keys, strict=True):
        new_client(folder / "keys", name, file)
    config = folder / "kaas.yaml"
    config.write_bytes(msgspec.yaml.encode(_settings(folder, policy, testbed, etask_workers)))
    command = [sys.executable, "-m", "kaas.cli", "serve", "--config", str(config)]
    log = folder / "log"
    environment = {**os.environ, **testbed.prepare(folder), "RAY_AUTH_MODE": "token"}  # of its workers too
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            preexec_fn=end_with_parent,
            start_new_session=True,  # a signal to the whole group would end Ray first, and the server would wait for it
        )
    try:
        assert process.stdout is not None, "it is a pipe"
        address = next((found.group() for line in process.stdout if (found := _ADDRESS.search(line))), None)
        if address is None:
            last = next(reversed(log.read_text().strip().splitlines()), "it says nothing")
            raise DeviceUnavailable(f"the server did not start: {last}. On a busy machine, the same command may do")
        yield ExperimentServer(address, policy, testbed, keys)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _settings(folder: Path, policy: str, testbed: Testbed, etask_workers: int) -> dict[str, Any]:
    pool = {"devices": [testbed.device()] * testbed.devices, "policy": policy, "slots": SLOTS}
    with_steps = [each for each in WORKLOADS.values() if each.steps]
    return {
        "name": f"papers-{token_hex(4)}",
        "ray": True,
        "listen": {"host": "127.0.0.1", "port": 0},
        "state": str(folder / "state"),
        "keys": str(folder / "keys"),
        "pool": {**pool, "etask_workers": etask_workers},
        "code": {"any": True, "providers": [*testbed.providers], "build": True},
        "limits": {"quotas": {"stored_bytes": STORED_BYTES, "build_s_per_minute": BUILD_S_PER_MINUTE}},
        "steps": {each.step(end): testbed.step(each, end) for each in with_steps for end in ("before", "after")},
        "step_processes": STEP_PROCESSES,
        "etasks": {each.name: _etask(each, testbed) for each in WORKLOADS.values()},
    }


def _etask(workload: Workload, testbed: Testbed) -> dict[str, Any]:
    steps = {end: workload.step(end) for end in ("before", "after")} if workload.steps else {}
    return {**testbed.etask(workload), **steps}
