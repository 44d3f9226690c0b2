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
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.client import Client
from kaas.errors import DeviceUnavailable, WrongAnswer
from kaas.papers.workloads import WORKLOADS, Scale, Workload, answer, constants, ktask
from kaas.server.clients.keys import new_client

if TYPE_CHECKING:
    from kaas.client.remote_function import RemoteFunction

STEP_PROCESSES = 16
"""Enough for all steps that are under way at the highest rate: 10 of resnet50 (10 ms for each 1 ms of four devices)."""
SLOTS = 2
STOP_S = 60.0

_ADDRESS = re.compile(r"tcp://\S+:\d+")


@dataclass(frozen=True, slots=True)
class Replicas:
    """Clients of a workload, each with its own function. A number stands for a replica, modulo their count.

    Fields:
        calls: of the replicas' functions. answers: the first element of each replica's results.
    """

    workload: Workload
    inputs: Mapping[str, Any]
    calls: tuple[Callable[..., Any], ...]
    answers: tuple[float, ...]

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
        found = float(np.frombuffer(result["score"] if self.workload.steps else result, np.float32)[0])
        if abs(found - self.answers[replica]) > 1e-3:
            raise WrongAnswer(f"{self.workload.name}, replica {replica}: {found} is not {self.answers[replica]}")

    def warm(self, least: int) -> None:
        """Send a request of each replica, and `least` in all, at once: each device compiles, or starts a process."""
        numbers = range(max(least, len(self.calls)))
        for number, each in zip(numbers, [self.send(number) for number in numbers], strict=True):
            self.check(number, each.result())


@dataclass(frozen=True, slots=True)
class ExperimentServer:
    """A running server with one policy.

    Fields:
        policy: of the pool. keys: the file of each client's keys, as many as there may be replicas.
    """

    address: str
    policy: str
    scale: Scale
    keys: tuple[Path, ...]

    @contextmanager
    def ktasks(self, workload: Workload, replicas: int) -> Iterator[Replicas]:
        """Register a kTask for each replica: each is a client's, with constants of its own."""
        task = ktask(workload, self.scale)
        before, after = (f"{workload.name}_{end}" if workload.steps else "" for end in ("before", "after"))
        values = [number + 1.0 for number in range(replicas)]
        with self._clients(replicas) as clients:
            functions = [
                client.register(task, constants(workload, self.scale, value), before=before, after=after)
                for client, value in zip(clients, values, strict=True)
            ]
            yield self._replicas(workload, functions, values)
            for client, function in zip(clients, functions, strict=True):
                client.unregister(function)

    @contextmanager
    def etasks(self, workload: Workload, replicas: int) -> Iterator[Replicas]:
        """Give the eTask to each replica: each client has a process of its own."""
        with self._clients(replicas) as clients:
            functions = [client.function(workload.name) for client in clients]
            yield self._replicas(workload, functions, [1.0] * replicas)

    @contextmanager
    def _clients(self, count: int) -> Iterator[list[Client]]:
        with ExitStack() as closing:
            yield [closing.enter_context(Client(self.address, keys=keys)) for keys in self.keys[:count]]

    def _replicas(self, workload: Workload, functions: Sequence[RemoteFunction], values: Sequence[float]) -> Replicas:
        import numpy as np

        count = self.scale.bytes(workload.input_bytes) // 4
        inputs = {"data": np.ones(count, np.uint8)} if workload.steps else {"x": np.ones(count, np.float32)}
        calls = tuple(function.call for function in functions)
        return Replicas(workload, inputs, calls, tuple(answer(workload, value) for value in values))


@contextmanager
def serve(folder: Path, policy: str, scale: Scale, clients: int) -> Iterator[ExperimentServer]:
    """Run a server until the end of the block.

    Args:
        folder: of its keys, state and log; a new one.
        policy: of its pool.
        scale: its devices.
        clients: the number of its clients.

    Raises:
        DeviceUnavailable: the server does not start.
    """
    names = [f"replica-{number}" for number in range(clients)]
    keys = tuple(folder / f"{name}.toml" for name in names)
    for name, file in zip(names, keys, strict=True):
        new_client(folder / "keys", name, file)
    config = folder / "kaas.yaml"
    config.write_bytes(msgspec.yaml.encode(_settings(folder, policy, scale)))
    command = [sys.executable, "-m", "kaas.cli", "serve", "--config", str(config)]
    model, log = folder / "model.toml", folder / "log"
    model.write_text(_model(scale))
    environment = {**os.environ, "SOFTGPU_MODEL": str(model), "RAY_AUTH_MODE": "token"}  # of its workers too
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        assert process.stdout is not None, "it is a pipe"
        address = next((found.group() for line in process.stdout if (found := _ADDRESS.search(line))), None)
        if address is None:
            raise DeviceUnavailable(f"the server did not start: {log.read_text()[-2000:]}")
        yield ExperimentServer(address, policy, scale, keys)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_S)


def _settings(folder: Path, policy: str, scale: Scale) -> dict[str, Any]:
    device = {"kind": "software", "memory_bytes": scale.bytes(scale.device_bytes)}
    with_steps = [each for each in WORKLOADS.values() if each.steps]
    return {
        "name": f"papers-{token_hex(4)}",
        "ray": True,
        "listen": {"host": "127.0.0.1", "port": 0},
        "state": str(folder / "state"),
        "keys": str(folder / "keys"),
        "pool": {"devices": [device] * scale.devices, "policy": policy, "slots": SLOTS},
        "code": {"any": True},
        "steps": {
            f"{each.name}_{end}": f"kaas.papers.paper_steps:{each.name}_{end}"
            for each in with_steps
            for end in ("before", "after")
        },
        "step_processes": STEP_PROCESSES,
        "etasks": {each.name: _etask(each, scale) for each in WORKLOADS.values()},
    }


def _model(scale: Scale) -> str:
    """Return the text of the devices' `softgpu.Model`."""
    kernels = "".join(f"{each.symbol} = [{each.kernel_s * scale.slow!r}, 1.0]\n" for each in WORKLOADS.values())
    return f"copy_bytes_per_s = {scale.copy_rate()!r}\n[kernels]\n{kernels}"


def _etask(workload: Workload, scale: Scale) -> dict[str, Any]:
    sizes = {"x": scale.bytes(workload.input_bytes) // 4, "y": scale.bytes(workload.output_bytes) // 4}
    shapes = {name: ["float32", [count]] for name, count in sizes.items()}
    steps = {end: f"{workload.name}_{end}" for end in ("before", "after")} if workload.steps else {}
    function = f"kaas.papers.paper_etasks:{workload.name.capitalize()}"
    return {"function": function, "inputs": {"x": shapes["x"]}, "outputs": {"y": shapes["y"]}, **steps}
