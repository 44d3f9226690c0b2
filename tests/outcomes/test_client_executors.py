"""The promise of isolation: "process": kernels of a client run in processes of its own, and find nothing of others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceLost
from kaas.worker import sandbox
from softgpu import user_cache
from tests.api.conftest import add_task
from tests.outcomes.test_sandbox import namespaces_allowed
from tests.server.servers import DEVICE, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

WALLS = {"pool": {"devices": [DEVICE], "isolation": "process", "client_executors": 2}}
TRAP = """.version 8.0
.target sm_80
.address_size 64
.visible .entry trap(.param .u64 out)
{
  trap;
  ret;
}"""
SAID = "INTRUDER "
FORGED = "2030-01-01T00:00:00.000Z CRITICAL kaas.server.server: forged \x1b[2J\n"
INTRUDER = """
import ctypes, json, os, sys

BACKWARDS = bytes.fromhex({backwards!r})  # so that the secret is not here already
CHUNK = 1 << 20
address = []


def attempt(action):
    try:
        return repr(action())[:200]
    except BaseException as error:
        return type(error).__name__ + ": " + str(error)[:100]


def in_memory():
    libc, copy = ctypes.CDLL(None), os.memfd_create("copy")
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0] for line in maps if " r" in line and "[v" not in line and "/memfd:copy" not in line]
    found = 0
    for each in ranges:
        begin, end = (int(bound, 16) for bound in each.split("-"))
        for at in range(begin, end, CHUNK):
            size = min(CHUNK, end - at)
            os.lseek(copy, 0, 0)
            copied = libc.write(copy, ctypes.c_void_p(at), ctypes.c_size_t(size))
            found += copied > 0 and BACKWARDS in os.pread(copy, copied, 0)[::-1]
    os.close(copy)
    return found


def join(role, name):
    from kaas.wire.connections.connect import connect

    return connect(address[0], "here", role, name, "other", 20.0)


def look(own):
    from cuda.bindings import driver

    here = os.environ["SOFTGPU_KERNELS"]
    others = os.path.dirname(os.path.dirname(here))
    found = {{
        "pid": os.getpid(),
        "the secret": in_memory(),
        "a program's place": attempt(lambda: join("client", "thief")),
        "another worker's place": attempt(lambda: join("executor", "1" if own == "0" else "0")),
        "a place that no worker has": attempt(lambda: join("executor", "77")),
        "its own place again": attempt(lambda: join("executor", own)),
        "others' compiled code": attempt(lambda: os.listdir(others)),
        "code for others": attempt(lambda: open({kernels!r} + "/planted", "w")),
        "new code": attempt(lambda: str(driver.cuModuleLoadData({new_code!r}.encode())[0])),
        "its own code": attempt(lambda: bool(os.listdir(here))),
        "files": [attempt(lambda: os.readlink("/proc/self/fd/%s" % each)) for each in range(99)],
        "cut": attempt(lambda: os.ftruncate(2, 0)),
    }}
    os.write(2, ("\\n{said}" + json.dumps(found) + "\\n" + {forged!r}).encode())


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "kaas.executor.executor":  # which `ExecutorWorker.start` imports
            sys.meta_path.remove(self)
            from kaas.worker.executor_worker import ExecutorWorker

            begin, run = ExecutorWorker.begin, ExecutorWorker._run
            ExecutorWorker.begin = lambda self, where: address.append(where) or begin(self, where)
            ExecutorWorker._run = lambda self, invocation: (look(self._name), run(self, invocation))


if "kaas.worker.executor_process" in sys.orig_argv:
    sys.meta_path.insert(0, Watch())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, WALLS)
    yield started
    started.close()


def client_of(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def test_clients_share_a_device_and_a_fault_of_one_costs_the_others_nothing(server: Server) -> None:
    out = kaas.Buffer("out", 1, "float32")
    code = kaas.Library.from_ptx(TRAP)
    broken = kaas.KTask([kaas.Kernel(code, "trap", 1, 1, [kaas.Out(out)])], [out])
    x = np.arange(WIDTH, dtype=np.float32)
    with client_of(server, "alice") as alice, client_of(server, "bob") as mallory:
        function = alice.register(scaled())
        np.testing.assert_array_equal(alice.call(function, {"x": x}).result(TIMEOUT_S), 2 * x)
        before = set(server.children())
        with pytest.raises(DeviceLost):
            mallory.call(broken, {}).result(TIMEOUT_S)
        np.testing.assert_array_equal(mallory.call(scaled(3.0), {"x": x}).result(TIMEOUT_S), 3 * x)
        np.testing.assert_array_equal(alice.call(function, {"x": x}).result(TIMEOUT_S), 2 * x)
        assert len(before & set(server.children())) >= 1
    said = server.errors.read_text()
    assert "kernels of each client run in processes of its own" in said
    assert said.count("a worker has ended") <= 1


@pytest.mark.skipif(not sandbox.available(), reason="this Linux has no Landlock")
def test_code_in_an_executor_finds_nothing_of_another_client_and_takes_no_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = np.random.default_rng(7).normal(size=WIDTH).astype(np.float32)
    code = tmp_path / "code"
    code.mkdir()
    kernels = str(user_cache.cache_root() / "kernels")
    text = INTRUDER.format(
        backwards=secret[:16].tobytes()[::-1].hex(),
        said=SAID,
        kernels=kernels,
        forged=FORGED,
        new_code=f"{TRAP}\n// {token_hex(8)}",
    )
    (code / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(str(code))
    server = Server(tmp_path, WALLS)
    try:
        with client_of(server, "alice") as alice, client_of(server, "bob") as mallory:
            for _ in range(2):
                alice.call(scaled(), {"x": secret}).result(TIMEOUT_S)
                mallory.call(scaled(3.0), {"x": np.zeros(WIDTH, np.float32)}).result(TIMEOUT_S)
    finally:
        server.close()
    lines = server.errors.read_text(errors="replace").splitlines()
    found: list[dict[str, Any]] = [json.loads(said) for line in lines if (said := line.partition(f"] {SAID}")[2])]
    forged = [line for line in lines if "forged" in line]
    assert forged
    assert all(re.fullmatch(r"\[worker \d+\] 2030-.* forged \\x1b\[2J", line) for line in forged)
    alices = {each["pid"] for each in found if each["the secret"]}  # from its second request on
    assert len(alices) == 1  # where it is, it is found
    bobs = [each for each in found if each["pid"] not in alices]
    assert len(bobs) == 2
    for each in found:
        assert "runs kernels for the pool: it is no program" in each["a program's place"]
        assert "is not worker" in each["another worker's place"]
        assert "there is no worker 77" in each["a place that no worker has"]
        assert "is connected already" in each["its own place again"]
        assert each["others' compiled code"].startswith("PermissionError")
        assert each["code for others"].startswith("PermissionError")
        assert each["cut"].startswith("OSError")
        assert "JIT_COMPILATION_DISABLED" in each["new code"]
        assert not [name for name in each["files"] if name.startswith("'/") and not name.startswith("'/dev/")]
        assert each["its own code"] in ("False", "True")  # a kernel may be in the cache already


def test_pins_and_status_are_of_the_clients_executors() -> None:
    config = kaas.Config(devices=(kaas.Device("software", 64 << 20),), isolation="process", client_executors=2)
    kaas.init(ray=False, name=f"walls {os.getpid()}", config=config)
    try:
        a, b = np.arange(WIDTH, dtype=np.float32), np.ones(WIDTH, np.float32)
        function = kaas.register(add_task(WIDTH), {"b": b})
        kaas.pin(function)  # before any executor is this client's
        assert [pin.state for pin in kaas.status().devices[0].pins] == ["loading"]
        for client in (None, "bob"):
            np.testing.assert_array_equal(kaas.call(function, {"a": a}, client=client).result(TIMEOUT_S), a + b)
        shown = [each for each in kaas.status().devices[0].executors if each.client]
        assert len({each.pid for each in shown}) == len({each.client for each in shown}) == 2
        assert "bob" in {each.client for each in shown}
        assert {each.sandboxed for each in shown} == {sandbox.available()}
        assert ("namespaces" in shown[0].lacks) != namespaces_allowed()
        while [pin.state for pin in kaas.status().devices[0].pins] != ["held"]:
            pass  # the executor carries out the order beside the request
        kaas.unpin(function)
        assert not kaas.status().devices[0].pins
    finally:
        kaas.shutdown()
