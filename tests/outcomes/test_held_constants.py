"""The promise of shared constants with isolation: "process": they are on a device once, and no client changes them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceLost
from tests.server.servers import DEVICE, STEPS, Server
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

COUNT = 1 << 20  # of floats: 4 MiB
READ = 1024  # of them
HOLDER = "kaas.pool.on_processes.holder_process"
SPOIL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry spoil(.param .u64 x, .param .u64 y)
{
  .reg .u64 %rd<3>;
  .reg .f32 %f<2>;
  ld.param.u64 %rd1, [x];
  mov.f32 %f1, 0f00000000;
  st.global.f32 [%rd1], %f1;
  ret;
}"""
SAID = "INTRUDER "
INTRUDER = """
import ctypes, fcntl, json, mmap, os, sys


def held():
    for each in os.listdir("/proc/self/fd"):
        try:
            if "softgpu" in os.readlink("/proc/self/fd/" + each) and fcntl.fcntl(int(each), 1034) & 16:
                yield int(each)
        except OSError:
            pass


def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return "refused"


def look():
    found = []
    for file in held():
        libc, size = ctypes.CDLL(None, use_errno=True), os.fstat(file).st_size
        opened = [file]
        try:
            opened.append(os.open("/proc/self/fd/%d" % file, os.O_RDWR))
        except OSError:
            pass
        for each in opened:
            found += [
                attempt(lambda: os.pwrite(each, b"spoilt", 0)),
                attempt(lambda: mmap.mmap(each, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)),
                attempt(lambda: os.ftruncate(each, 0)),
                attempt(lambda: os.ftruncate(each, 2 * size)),
                "refused" if libc.fallocate(each, 3, ctypes.c_int64(0), ctypes.c_int64(4096)) else "punched",
                attempt(lambda: fcntl.fcntl(each, 1033, 2)),
            ]
    inodes = sorted({{os.fstat(each).st_ino for each in held()}})
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, access, _, _, inode, *_ = line.split()
            if int(inode) in inodes:
                start, end = (int(each, 16) for each in place.split("-"))
                libc = ctypes.CDLL(None)
                changed = libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3)
                found.append("refused" if changed and "w" not in access else "writable")
    os.write(2, ("\\n{said}" + json.dumps([os.getpid(), inodes, found]) + "\\n").encode())


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "kaas.executor.executor":  # which `ExecutorWorker.start` imports
            sys.meta_path.remove(self)
            from kaas.worker.executor_worker import ExecutorWorker

            run = ExecutorWorker._run
            ExecutorWorker._run = lambda self, invocation: (run(self, invocation), look())


if "kaas.worker.executor_process" in sys.orig_argv:
    sys.meta_path.insert(0, Watch())
"""


Said = Callable[[], list[Any]]


def constants(seed: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def scaled(factor: float, count: int = COUNT) -> kaas.KTask:
    """y = factor * x, of the first numbers of x."""
    x, y = kaas.Buffer("x", count, "float32"), kaas.Buffer("y", READ, "float32")
    arguments: list[Any] = [kaas.In(x), kaas.Out(y), kaas.f32(factor), kaas.u32(READ)]
    return kaas.KTask([kaas.Kernel(STEPS, "scale", READ // 256, 256, arguments)], [y])


@contextmanager
def pool(memory_bytes: int = 256 << 20, **settings: Any) -> Iterator[None]:
    devices = (kaas.Device("software", memory_bytes),)
    config = kaas.Config(devices=devices, isolation="process", client_executors=3, **settings)
    kaas.init(ray=False, name=f"held {token_hex(4)}", config=config)
    try:
        yield
    finally:
        kaas.shutdown()


def check(function: kaas.Function, x: np.ndarray[Any, Any], factor: float, client: str) -> None:
    y = kaas.call(function, {}, client=client, deadline_s=TIMEOUT_S).result(TIMEOUT_S)
    np.testing.assert_array_equal(y, np.float32(factor) * x[:READ])


def holders() -> list[int]:
    """The processes that make memory for this pool."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command = (each / "cmdline").read_text()
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if HOLDER in command and parent == kaas.status().pid:
            found.append(int(each.name))
    return found


def held_files() -> dict[int, int]:
    """Device memory that the pool holds: bytes of the machine's memory, by inode."""
    files = {}
    for each in Path(f"/proc/{kaas.status().pid}/fd").iterdir():
        try:
            if "softgpu" in os.readlink(each):
                found = os.stat(each)
                files[found.st_ino] = found.st_blocks * 512
        except OSError:  # it is closed
            continue
    return files


def executors() -> dict[str, int]:
    """The process of each client's executor."""
    return {each.client: each.pid for each in kaas.status().devices[0].executors if each.client}


def mapped_bytes(pid: int, inode: int) -> int:
    """Bytes of a file that a process maps."""
    found = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    spans = [place.split("-") for place, _, _, _, each, *_ in found if int(each) == inode]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def test_clients_of_one_model_have_its_constants_on_the_device_once() -> None:
    x = constants(1)
    with pool():
        function, twice = kaas.register(scaled(2.0), {"x": x}), kaas.register(scaled(4.0), {"x": x})
        for client in ("alice", "bob", "carol"):
            for _ in range(2):
                check(function, x, 2.0, client)
        check(twice, x, 4.0, "bob")
        files = held_files()
        assert len(files) == 1
        assert sum(files.values()) < 2 * x.nbytes
        assert len(holders()) == 1
        assert len(executors()) == 3
        if os.geteuid() == 0:  # no other user looks into an executor in a sandbox
            (inode,) = files
            assert {mapped_bytes(pid, inode) for pid in executors().values()} == {x.nbytes}


def test_a_servers_clients_share_no_memory_and_its_metrics_count_what_each_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    x = constants(10)
    settings = {"devices": [DEVICE], "isolation": "process", "client_executors": 2}
    server = Server(tmp_path, {"metrics_port": port, "pool": settings})
    try:
        for name in ("alice", "bob"):
            with kaas.Client(server.endpoint, keys=tmp_path / f"{name}.keys", patience_s=TIMEOUT_S) as client:
                function = client.register(scaled(2.0), {"x": x})
                np.testing.assert_array_equal(client.call(function, {}).result(TIMEOUT_S), 2 * x[:READ])
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    cached = dict(re.findall(r'^kaas_cache_bytes{tier="(.*)"} (.*)$', text, re.MULTILINE))
    assert {tier: float(nbytes) for tier, nbytes in cached.items()} == {"device": 2 * x.nbytes, "host": 0}


def test_a_kernel_that_writes_constants_ends_its_own_executor_only() -> None:
    x = constants(2)
    buffer, out = kaas.Buffer("x", COUNT, "float32"), kaas.Buffer("y", READ, "float32")
    code = kaas.Library.from_ptx(SPOIL)
    spoil = kaas.KTask([kaas.Kernel(code, "spoil", 1, 1, [kaas.In(buffer), kaas.Out(out)])], [out])
    with pool():
        function, spoiling = kaas.register(scaled(2.0), {"x": x}), kaas.register(spoil, {"x": x})
        check(function, x, 2.0, "alice")
        before = executors()["alice"]
        with pytest.raises(DeviceLost):
            kaas.call(spoiling, {}, client="mallory").result(TIMEOUT_S)
        for client in ("alice", "bob", "mallory"):
            check(function, x, 2.0, client)
        assert executors()["alice"] == before
        assert len(held_files()) == 1


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """Returns what code of a stranger has found in executors: of each run its process, the held memory, attempts."""
    (tmp_path / "sitecustomize.py").write_text(INTRUDER.format(said=SAID))
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda: [json.loads(line.partition(SAID)[2]) for line in capfd.readouterr().err.splitlines() if SAID in line]


def test_a_descriptor_of_constants_gives_no_way_to_change_them(said: Said) -> None:
    x = constants(3)
    with pool():
        function = kaas.register(scaled(2.0), {"x": x})
        for client in ("mallory", "mallory", "alice"):
            check(function, x, 2.0, client)
    attempts = [attempts for _, _, attempts in said()]
    assert len(attempts) >= 2
    for each in attempts:
        assert len(each) >= 7  # by a descriptor, and by the mapping
        assert set(each) == {"refused"}


def test_an_executor_maps_the_constants_of_its_client_only(said: Said) -> None:
    x = {client: constants(seed) for seed, client in enumerate(("alice", "bob"), start=20)}
    with pool():
        functions = {client: kaas.register(scaled(2.0), {"x": each}) for client, each in x.items()}
        for _ in range(2):
            for client, function in functions.items():
                check(function, x[client], 2.0, client)
        inodes, pids = list(held_files()), executors()
    found = {pid: held for pid, held, _ in said()}
    assert sorted(found[pids["alice"]] + found[pids["bob"]]) == sorted(inodes)
    assert len(found[pids["alice"]]) == len(found[pids["bob"]]) == 1


def test_a_holder_that_ends_or_stands_still_costs_no_answer() -> None:
    x = [constants(seed) for seed in range(4, 8)]
    with pool():
        functions = [kaas.register(scaled(2.0), {"x": each}) for each in x]
        check(functions[0], x[0], 2.0, "alice")
        (holder,) = holders()
        os.kill(holder, signal.SIGSTOP)  # the pool ends it, and its number may be another's after that
        check(functions[1], x[1], 2.0, "alice")
        assert len(held_files()) == 1
        check(functions[0], x[0], 2.0, "bob")
        check(functions[2], x[2], 2.0, "bob")
        assert len(held_files()) == 2
        (other,) = holders()
        assert other != holder
        os.kill(other, signal.SIGKILL)
        until(lambda: other not in holders())
        for client in ("alice", "bob", "carol"):
            check(functions[0], x[0], 2.0, client)
        check(functions[3], x[3], 2.0, "carol")
        assert len(held_files()) == 3


def test_constants_without_room_for_shared_ones_are_copied() -> None:
    x = [constants(seed, 3 * COUNT) for seed in (8, 9)]  # 12 MiB each, in parts of 16 MiB
    with pool(64 << 20):
        functions = [kaas.register(scaled(2.0, 3 * COUNT), {"x": each}) for each in x]
        for client in ("alice", "bob"):
            for function, each in zip(functions, x, strict=True):
                for _ in range(2):
                    check(function, each, 2.0, client)
        assert len(held_files()) == 1
