"""`kaas serve` in another process, with keys for some clients, for the benchmarks of servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from statistics import median
from time import monotonic
from types import TracebackType
from typing import Any, Self

import msgspec

import kaas
from kaas.server.clients.keys import new_client

ADDRESS = re.compile(r"tcp://\S+:\d+")
DEVICE_BYTES = 256 << 20
TIMEOUT_S = 60.0
SAMPLE_S = 0.5
ADMINISTRATOR = "root"


class Server:
    """Servers one after the other, at the same address and with the same state.

    Fields:
        address, pid: of the newest server. public_key: of all of them. insecure: True if they take no keys.
        ended: exit statuses of the servers that `stop` has ended.
    """

    def __init__(
        self,
        folder: Path,
        clients: Sequence[str],
        *,
        host: str = "127.0.0.1",
        devices: int = 1,
        slots: int = 1,
        kernels_s: Mapping[str, float] | None = None,
        limits: Mapping[str, int] | None = None,
        insecure: bool = False,
        settings: Mapping[str, Any] | None = None,
        paths: Sequence[Path] = (),
        **pool: Any,
    ) -> None:
        """Prepare the first server.

        Args:
            clients: names of keys. kernels_s: modelled seconds of kernels by symbol. settings: more of the
                configuration. paths: where its processes look for modules first. pool: other settings of the pool.
        """
        self._folder, self._host, self._port = folder, host, 0
        self._keys = {name: folder / f"{name}.toml" for name in (*clients, ADMINISTRATOR)}
        for name, path in self._keys.items():
            self.public_key = new_client(folder / "keys", name, path).server_key
        self.insecure = insecure
        self._settings = {
            "name": f"served-{token_hex(4)}",
            "state": str(folder / "state"),
            **({} if insecure else {"keys": str(folder / "keys")}),
            "pool": {"devices": [{"kind": "software", "memory_bytes": DEVICE_BYTES}] * devices, "slots": slots, **pool},
            "code": {"any": True},
            "limits": dict(limits or {}),
            "administrators": [ADMINISTRATOR],
            **(settings or {}),
        }
        self._environment = {name: value for name, value in os.environ.items() if name != "SOFTGPU_MODEL"}
        if paths:
            found = [*map(str, paths), os.environ.get("PYTHONPATH", "")]
            self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, found))
        if kernels_s is not None:  # otherwise its GPU has no model: in modelled time other threads run submitted work
            model = "".join(f"{symbol} = [{seconds}, 1.0]\n" for symbol, seconds in kernels_s.items())
            (folder / "model.toml").write_text(f"[kernels]\n{model}")
            self._environment["SOFTGPU_MODEL"] = str(folder / "model.toml")
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self.ended: list[int] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it was started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._running.poll() is None

    @property
    def errors(self) -> int:
        """The number of unexpected errors: those with a traceback in the log."""
        return self.log.read_text().count("Traceback")

    @property
    def log(self) -> Path:
        """The file with the standard error of all servers."""
        return self._folder / "log"

    def keys(self, name: str) -> Path:
        """Return the file of a client's keys."""
        return self._keys[name]

    def start(self) -> None:
        """Start a server, and wait until it is ready."""
        path = self._folder / "kaas.yaml"
        path.write_bytes(msgspec.yaml.encode(self._settings | {"listen": {"host": self._host, "port": self._port}}))
        command = [sys.executable, "-m", "kaas.cli", "serve", "--config", str(path)]
        command += ["--insecure"] if self.insecure else []
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := ADDRESS.search(line):
                self.address = found.group()
                self._port = int(self.address.rpartition(":")[2])
                threading.Thread(target=self._process.stdout.read, daemon=True).start()  # the pipe must not fill up
                return
        raise SystemExit(f"the server did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()

    def wait(self) -> int:
        """Return the exit status of the newest server once it has ended."""
        return self._running.wait()

    def stop(self) -> None:
        """Stop the server as a service manager does."""
        self._running.send_signal(signal.SIGTERM)
        self.ended.append(self._running.wait(TIMEOUT_S))

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        return self.workers("kaas.worker.executor_process")

    def workers(self, module: str) -> list[int]:
        """Return the ids of the server's processes that run a module."""
        return [pid for pid in descendants(self.pid) if runs(pid, module)]

    def compilers_s(self) -> float:
        """Return the processor seconds of its compilers that run now."""
        pids = [pid for pid in descendants(self.pid) if runs(pid, "kaas.worker.compiler_process")]
        return sum(map(_processor_s, pids))

    def charged(self) -> Counter[str]:
        """Return the requests of each client in the server's own count."""
        with kaas.Client(self.address, keys=self.keys(ADMINISTRATOR)) as client:
            flows = client.usage()["flows"]
        charged = Counter[str]()
        for flow in flows:
            charged[flow["client"]] += flow["requests"]
        return charged


class Memory:
    """The memory of a server's processes, sampled all the time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._samples: list[tuple[float, int, int]] = []

    def __enter__(self) -> Self:
        self._began_s = monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            pid = self._server.pid
            held = memory_bytes([pid]), memory_bytes(self._server.executors())
            self._samples.append((monotonic() - self._began_s, *held))

    def thirds(self, seconds: float) -> tuple[list[float], list[float]]:
        """Return medians in MB for each third of this time: the server's own memory, and its executors'."""
        found: tuple[list[float], list[float]] = [], []
        for third in range(3):
            first_s, last_s = seconds * third / 3, seconds * (third + 1) / 3
            samples = [sample for sample in self._samples if first_s <= sample[0] < last_s]
            for position, values in enumerate(found, 1):
                values.append(round(median([sample[position] for sample in samples]) / 2**20, 1))
        return found


def runs(pid: int, module: str) -> bool:
    """Return whether a process runs a module of Python."""
    try:
        return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pids: Sequence[int]) -> int:
    """Return the memory of these processes together, shared pages counted once.

    Pages of files are left out, since other programs share them.
    """
    return sum(_kb(pid, "Pss_Anon") + _kb(pid, "Pss_Shmem") for pid in pids) << 10


def resident_bytes(pid: int) -> int:
    return _kb(pid, "Rss") << 10


def _kb(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the process has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def descendants(pid: int) -> Iterator[int]:
    """Return the processes that this process has started, and those that they have started."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> list[int]:
    """Return the processes whose parent is this process; none if it has ended."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for path in tasks for child in (path / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
