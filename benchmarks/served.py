"""A server of remote clients in a process of its own, for what measures it: `kaas serve`, with keys for some clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

import kaas
from kaas.remote.keys import new_client

ADDRESS = re.compile(r"tcp://\S+:\d+")
DEVICE_BYTES = 256 << 20
PATIENCE_S = 60.0
ADMINISTRATOR = "root"


class Server:
    """One after the other, at the same address and with the same state.

    Fields:
        address, pid: of the newest. ended: exit statuses of those that were not killed by `kill`.
    """

    def __init__(
        self,
        folder: Path,
        clients: Sequence[str],
        *,
        devices: int = 1,
        kernels_s: Mapping[str, float] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        """clients: names of keys. kernels_s: seconds that kernels are modelled to take, by symbol."""
        self._folder, self._port = folder, 0
        self._keys = {name: folder / f"{name}.toml" for name in (*clients, ADMINISTRATOR)}
        for name, path in self._keys.items():
            new_client(folder / "keys", name, path)
        self._settings = {
            "state": str(folder / "state"),
            "keys": str(folder / "keys"),
            "pool": {"devices": [{"kind": "software", "memory_bytes": DEVICE_BYTES}] * devices},
            "code": {"any": True},
            "limits": dict(limits or {}),
            "administrators": [ADMINISTRATOR],
        }
        model = "".join(f"{symbol} = [{seconds}, 1.0]\n" for symbol, seconds in (kernels_s or {}).items())
        (folder / "model.toml").write_text(f"[kernels]\n{model}")
        self._environment = os.environ | {"KAAS_SOFTGPU_MODEL": str(folder / "model.toml")}
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
    def log(self) -> Path:
        """What all of them have said on their standard error."""
        return self._folder / "log"

    def keys(self, name: str) -> Path:
        """The file of a client's keys."""
        return self._keys[name]

    def start(self) -> None:
        """Until it is ready."""
        path = self._folder / "kaas.yaml"
        path.write_bytes(msgspec.yaml.encode(self._settings | {"listen": {"port": self._port}}))
        command = [sys.executable, "-m", "kaas.cli", "serve", "--config", str(path)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := ADDRESS.search(line):
                self.address = found.group()
                self._port = int(self.address.rpartition(":")[2])
                threading.Thread(target=self._process.stdout.read, daemon=True).start()  # or it would fill up
                return
        raise SystemExit(f"the server did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()

    def stop(self) -> None:
        """As a service manager does."""
        self._running.send_signal(signal.SIGTERM)
        self.ended.append(self._running.wait(PATIENCE_S))

    def executors(self) -> list[int]:
        """Their processes."""
        return [pid for pid in descendants(self.pid) if _argument(pid, "kaas.pool.executor_process")]

    def charged(self) -> dict[str, int]:
        """Requests of each client, by the server's own account."""
        with kaas.Client(self.address, keys=self.keys(ADMINISTRATOR)) as client:
            usage = client.usage()
        return {entry["client"]: entry["requests"] for entry in usage["by_client"]}


def _argument(pid: int, wanted: str) -> bool:
    try:
        return wanted.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def memory_bytes(pids: Sequence[int]) -> int:
    """Of these processes together, what they share counted once (PSS)."""
    return sum(_kb(pid, "Pss") for pid in pids) << 10


def resident_bytes(pid: int) -> int:
    return _kb(pid, "Rss") << 10


def _kb(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def descendants(pid: int) -> Iterator[int]:
    """The processes that this one has started, and theirs."""
    try:
        children = [int(child) for path in Path(f"/proc/{pid}/task").iterdir()
                    for child in (path / "children").read_text().split()]  # fmt: skip
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield child
        yield from descendants(child)
