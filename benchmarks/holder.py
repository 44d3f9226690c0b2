"""Constants outlive the executor that has loaded them, and processes of one model have them once.

    python -m benchmarks.holder [--json] [--mb 2048] [--model-mb 500] [--rounds 3]

warm_after_kill: one function on one software device, without Ray. Its executor is killed (SIGKILL), and the next
request comes at once: seconds until its answer, with constants of 2 GB on the device over constants of 32 KB; the
median of the rounds, at the worst of the levels of isolation.

memory_of_four: four clients with executors of their own call one model of 500 MB: the memory of all processes of the
pool over that with one client. Run it as root: processes with walls show nobody else their memory.

memory_of_four_etasks: the same of a pool on Ray, in which eTasks of four clients read the model's constants with
`kaas.device_constants`. Ray's own processes and its store count as the pool's; the figures `etasks_alone_*` are of the
eTasks and the holder only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import kaas
from benchmarks.isolation.memory import memory_mb
from benchmarks.isolation.pools import CLIENTS, LEVELS, spare_is_ready
from benchmarks.report import Bar, parser, positive, report
from benchmarks.served import descendants

PTX = (Path(__file__).parent / "kernels" / "launch.ptx").read_text()
CONSTANTS = 8
N = 1024
DEVICE_BYTES = 24 << 30
"""Of the device: where executors have one client each, a part of it holds the constants of 2 GB."""
NAMES = [f"w{number}" for number in range(CONSTANTS)]


@contextmanager
def pool(isolation: str) -> Iterator[None]:
    """A pool with one device, as this process's session."""
    device = kaas.Device("software", DEVICE_BYTES)
    config = kaas.Config(devices=(device,), isolation=isolation, client_executors=CLIENTS)
    kaas.init(ray=False, name=f"holder {isolation} {os.getpid()}", config=config)
    try:
        yield
    finally:
        kaas.shutdown()


def model(nbytes: int) -> kaas.Function:
    """Return a registered function whose constants have so many bytes together; a kernel reads each of them."""
    x, y = kaas.Buffer("x", N, "float32"), [kaas.Buffer(f"y{number}", N, "float32") for number in range(CONSTANTS)]
    size = nbytes // CONSTANTS // 4
    constants = {name: np.full(size, number, np.float32) for number, name in enumerate(NAMES)}
    code = kaas.Library.from_ptx(PTX)
    kernels = []
    for out, name in zip(y, NAMES, strict=True):
        args: list[Any] = [kaas.In(x), kaas.In(kaas.Buffer(name, size, "float32")), kaas.Out(out), kaas.i32(N)]
        kernels.append(kaas.Kernel(code, "step", N // 256, 256, [*args, kaas.i32(1)]))
    return kaas.register(kaas.KTask(kernels, y), constants)


def answer_s(function: kaas.Function, client: str = "one", expected: list[Any] | None = None) -> float:
    """Return the seconds until a request's answer, which is compared with the one before."""
    began_s = perf_counter()
    found = kaas.call(function, {"x": np.ones(N, np.float32)}, client=client).result()
    took_s = perf_counter() - began_s
    outputs = [np.array(found[name]) for name in sorted(found)] if isinstance(found, Mapping) else list(found)
    if expected is not None:
        for output, first in zip(outputs, expected or outputs, strict=True):
            np.testing.assert_array_equal(output, first)
        expected[:] = outputs
    return took_s


def executor_pid(client: str) -> int:
    """Return the process of the executor that serves a client."""
    (device,) = kaas.status().devices
    for each in device.executors:
        if each.client == client:
            return each.pid
    assert device.info is not None, "it has just answered"
    return device.info.pid


def first_answers(isolation: str, nbytes: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a function's first answer of all, and of the first after the end of its executor."""
    expected: list[Any] = []
    taken = []
    with pool(isolation):
        function = model(nbytes)
        first_s = answer_s(function, expected=expected)
        for _ in range(rounds):
            answer_s(function, expected=expected)
            spare_is_ready(isolation)
            os.kill(executor_pid("one"), signal.SIGKILL)
            taken.append(answer_s(function, expected=expected))
    return {"first_s": first_s, "after_kill_s": median(taken)}


def memory_of(nbytes: int, clients: int) -> float:
    """Return the MiB of all processes of a pool in which so many clients call one model."""
    with pool("process"):
        function = model(nbytes)
        for number in range(clients):
            spare_is_ready("process")
            answer_s(function, f"client {number}")
        spare_is_ready("process") if clients < CLIENTS else None
        return memory_mb([*descendants(os.getpid())])


class _Reader:
    """An eTask that keeps a model's constants mapped, and runs its kernels on them."""

    def __init__(self) -> None:
        self.constants: Mapping[str, Any] = {}

    def __call__(self, function: kaas.Function) -> list[Any]:
        self.constants = kaas.device_constants(function)
        x = np.ones(N, np.float32)
        return list(kaas.run_local(function.task, {"x": x, **self.constants}).values())

    def pid(self) -> int:
        return os.getpid()


def is_holder(pid: int) -> bool:
    """Return True for a process that holds constants for eTasks."""
    with suppress(OSError):  # it has ended
        return "HolderActor" in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def memory_of_etasks(nbytes: int, clients: int) -> tuple[float, float]:
    """Return the MiB of all processes of a pool whose eTasks, of so many clients, read one model, and of the eTasks."""
    import ray

    device = kaas.Device("software", DEVICE_BYTES)
    config = kaas.Config(devices=(device,), policy="exclusive", etask_workers=CLIENTS)
    kaas.init(address="local", name=f"holder eTasks {os.getpid()}", config=config)
    try:
        function, reader = model(nbytes), kaas.etask(_Reader)
        pids = []
        for number in range(clients):
            mine: Any = reader.options(client=f"client {number}")
            for value, output in enumerate(ray.get(mine.remote(function))):
                np.testing.assert_array_equal(output, np.full(N, 0.5 + value, np.float32))
            pids.append(ray.get(mine.pid.remote()))
        processes = [*descendants(os.getpid())]
        return memory_mb(processes), memory_mb([*pids, *filter(is_holder, processes)])
    finally:
        kaas.shutdown()


def main() -> None:
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--mb", type=positive, default=2048, help="constants on the device when its executor ends")
    options.add_argument("--model-mb", type=positive, default=500, help="constants of the model of four clients")
    options.add_argument("--rounds", type=positive, default=3)
    chosen = options.parse_args()
    detail: dict[str, float] = {}
    over = []
    for level in LEVELS:
        answer = {kind: first_answers(level, nbytes, chosen.rounds) for kind, nbytes in sizes(chosen.mb).items()}
        detail |= {f"{level}_{kind}_{name}": value for kind, each in answer.items() for name, value in each.items()}
        over.append(answer["full"]["after_kill_s"] / answer["empty"]["after_kill_s"])
        detail[f"{level}_warm_after_kill"] = over[-1]
    one_mb, four_mb = (memory_of(chosen.model_mb << 20, clients) for clients in (1, CLIENTS))
    one, four = (memory_of_etasks(chosen.model_mb << 20, clients) for clients in (1, CLIENTS))
    detail |= {"one_process_mb": one_mb, "four_processes_mb": four_mb}
    detail |= {"one_etask_mb": one[0], "four_etasks_mb": four[0]}
    detail |= {"etasks_alone_one_mb": one[1], "etasks_alone_four_mb": four[1]}
    bars: dict[str, Bar] = {
        "warm_after_kill": (max(over), "<=", 1.5),
        "memory_of_four": (four_mb / one_mb, "<=", 1.2),
        "memory_of_four_etasks": (four[0] / one[0], "<=", 1.2),
    }
    report("holder", bars, detail, chosen.json)


def sizes(full_mb: int) -> dict[str, int]:
    """Return the bytes of the constants by the names of their figures."""
    return {"full": full_mb << 20, "empty": 4 * N * CONSTANTS}


if __name__ == "__main__":
    main()
