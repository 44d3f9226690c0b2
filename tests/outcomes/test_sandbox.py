"""A kernel that takes over its executor's process finds no key there, no other tenant's data, and no way out.

How a kernel might take a process over is not shown here: Python code of this test stands in for it. It runs in the
process of an executor once that may load kernels, with all the rights that a kernel's code would have.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import InvalidConfig
from kaas.server.config.serve_config import Settings
from kaas.worker import sandbox
from softgpu import user_cache
from tests.server.servers import STEPS, Server
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.skipif(not sandbox.available(), reason="this Linux has no Landlock")

SAID = "INTRUDER "
INTRUDER = """
import glob, json, os, resource, socket, subprocess, sys, threading

FOLDER, DRIVERS = {folder!r}, {drivers!r}
PROCESS, MODULE = {process!r}, {module!r}


EXECUTOR = {executor!r}


def attempt(action):
    try:
        return repr(action())[:200]
    except BaseException as error:
        return type(error).__name__


def read(path):
    with open(path, "rb") as file:
        return file.read(16)


def files(kind=""):
    return [path for path in glob.glob(f"/proc/{{os.getppid()}}/fd/*") if kind in os.readlink(path)]


def look():
    server = os.getppid()
    found = {{
        "keys": attempt(lambda: [read(path) for path in glob.glob(FOLDER + "/keys/*")] + os.listdir(FOLDER + "/keys")),
        "a client's key": attempt(lambda: read(FOLDER + "/alice.keys")),
        "state": attempt(lambda: os.listdir(FOLDER + "/state")),
        "configuration": attempt(lambda: read(FOLDER + "/kaas.yaml")),
        "server's memory": attempt(lambda: open(f"/proc/{{server}}/mem", "rb")),
        "server's files": attempt(lambda: [os.readlink(path) for path in files()] or 1 / 0),
        "other tenants' values": attempt(lambda: [read(path) for path in files("memfd")] or 1 / 0),
        "server's environment": attempt(lambda: read(f"/proc/{{server}}/environ")),
        "server's end": attempt(lambda: os.kill(server, 0)),
        "server's limits": attempt(lambda: resource.prlimit(server, resource.RLIMIT_CORE, (0, 0))),
        "server's schedule": attempt(lambda: os.sched_setscheduler(server, os.SCHED_BATCH, os.sched_param(0))),
        "server's parameters": attempt(lambda: os.sched_setparam(server, os.sched_param(0))),
        "a core file": attempt(lambda: 1 / (resource.getrlimit(resource.RLIMIT_CORE)[1] != 0)),
        "files without end": attempt(lambda: 1 / (resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 4096)),
        "a process of its own": attempt(os.fork),
        "another session": attempt(os.setsid),
        "a program in memory": attempt(lambda: os.execve(os.memfd_create("program"), ["program"], {{}})),
        "datagrams": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "the driver library": attempt(lambda: [open(path, "ab") for path in glob.glob(DRIVERS)] or 1 / 0),
        "a link in the cache": attempt(lambda: os.symlink(FOLDER, DRIVERS.replace("*/*.so.1", "link"))),
        "a shell": attempt(lambda: subprocess.run(["/bin/sh", "-c", "id"], capture_output=True)),
        "the network": attempt(lambda: socket.create_connection(("127.0.0.1", 9), 5)),
        "a local connection": attempt(lambda: PROCESS == EXECUTOR and 1 / 0 or socket.socket(socket.AF_UNIX)),
        "others' sockets": attempt(lambda: [line for line in open("/proc/self/net/unix") if "/" in line] or 1 / 0),
        "a new file": attempt(lambda: open(FOLDER + "/left", "w")),
        "environment": os.environ.get("OPERATORS_SECRET", "PermissionError"),
    }}
    thread = threading.Thread(target=lambda: found.update(thread=attempt(lambda: os.listdir(FOLDER + "/keys"))))
    thread.start()
    thread.join()
    os.write(2, ("\\n{said}" + json.dumps(found) + "\\n").encode())


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            look()


if PROCESS in sys.orig_argv:
    sys.meta_path.insert(0, Watch())
"""


EXECUTOR, COMPILER = "kaas.worker.executor_process", "kaas.worker.compiler_process"
MODULES = {EXECUTOR: "kaas.executor.device.monitor", COMPILER: "softgpu.examination"}
"""Modules that are needed to run kernels, and to compile them: they are imported in the sandbox."""


def intrude(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], process: str = EXECUTOR
) -> dict[str, str]:
    """Return the findings of the intruder in a server's process, while a client's large kTask is new there and runs."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "sitecustomize.py").write_text(
        INTRUDER.format(
            folder=str(folder),
            drivers=f"{user_cache.cache_root()}/driver/*/*.so.1",
            said=SAID,
            process=process,
            module=MODULES[process],
            executor=EXECUTOR,
        )
    )
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("OPERATORS_SECRET", "a token")
    server = Server(folder, settings)
    try:
        n = 1 << 20  # too large for a message: it is in memory that server and executor share
        with kaas.Client(server.endpoint, keys=folder / "alice.keys", patience_s=TIMEOUT_S) as client:
            x = np.arange(n, dtype=np.float32)
            np.testing.assert_array_equal(client.call(new(n), {"x": x}).result(TIMEOUT_S), 2 * x)
    finally:
        server.close()
    lines = server.errors.read_text(errors="replace").splitlines()
    server.errors.unlink()
    found: list[dict[str, str]] = [json.loads(line.partition(SAID)[2]) for line in lines if SAID in line]
    assert all(each == found[0] for each in found)  # another compiler starts ahead
    return found[0]


def namespaces_allowed() -> bool:
    """Return True if a process may make namespaces here."""
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0


def new(width: int) -> kaas.KTask:
    """y = 2 * x, in code that no cache has."""
    x, y = kaas.Buffer("x", width, "float32"), kaas.Buffer("y", width, "float32")
    code = kaas.Library.from_ptx(STEPS.images[0].data + f"\n// {token_hex(8)}\n".encode())
    blocks = -(-width // 256)
    arguments = kaas.In(x), kaas.Out(y), kaas.f32(2.0), kaas.u32(width)
    return kaas.KTask([kaas.Kernel(code, "scale", blocks, 256, arguments)], [y])


@pytest.mark.processes
@pytest.mark.parametrize("process", [EXECUTOR, COMPILER])
def test_nothing_is_found_in_a_process_that_strangers_code_reaches(
    process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = intrude(tmp_path, monkeypatch, {}, process)
    nothing = {"PermissionError", "ZeroDivisionError"}  # the latter for a list of files that is empty
    if not namespaces_allowed():
        del found["others' sockets"]
    assert {name: what for name, what in found.items() if what not in nothing} == {}
    assert len(found) >= 26


@pytest.mark.processes
def test_the_intruder_succeeds_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The intruder looks in the right places. Two attempts would end it if they succeeded."""
    harmless = INTRUDER.replace("attempt(os.fork)", "'a child'").replace("attempt(os.setsid)", "'a session'")
    monkeypatch.setitem(globals(), "INTRUDER", harmless)
    found = intrude(tmp_path, monkeypatch, {"sandbox": False})
    assert found.pop("the network") == "ConnectionRefusedError"
    assert found.pop("a program in memory") == "OSError"  # it is empty
    assert "PermissionError" not in found.values()
    assert found.pop("a local connection") == "ZeroDivisionError"  # an executor needs that
    assert found["environment"] == "a token"
    (user_cache.cache_root() / "driver/link").unlink(missing_ok=True)


RIGHTS = """
import json, os, socket
from kaas.worker import sandbox


def attempt(action):
    try:
        return repr(action())[:200]
    except OSError as error:
        return type(error).__name__


def read(path):
    with open(path, "rb") as file:
        return file.read(16)


def fd(pid):
    return [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]


sandbox._try_namespaces = lambda: False  # as where Linux allows none
(found, said), (end, open_till_end) = os.pipe(), os.pipe()
outside = os.getpid()
inside = os.fork()
if not inside:
    os.close(open_till_end)
    sandbox.Sandbox().enter()
    os.write(said, json.dumps({
        "another root": attempt(lambda: os.chroot("/")),
        "the machine's name": attempt(lambda: socket.sethostname(socket.gethostname())),
        "another user": attempt(lambda: os.setuid(65534)),
        "others' environment": attempt(lambda: read(f"/proc/{outside}/environ")),
        "others' memory map": attempt(lambda: read(f"/proc/{outside}/maps")),
    }).encode())
    os.read(end, 1)
    os._exit(0)
by_inside = json.loads(os.read(found, 1 << 12))
sandbox._drop_capabilities()
by_outside = {
    "environment": attempt(lambda: read(f"/proc/{inside}/environ")),
    "memory": attempt(lambda: read(f"/proc/{inside}/mem")),
    "memory map": attempt(lambda: read(f"/proc/{inside}/maps")),
    "files": attempt(lambda: fd(inside)),
}
print(json.dumps({**by_inside, **by_outside}))
"""


@pytest.mark.processes
def test_a_process_in_a_sandbox_has_no_rights_of_root_and_no_process_of_its_user_reads_it() -> None:
    """Root's rights would read the environment of any process, whatever Landlock says (found on Linux 6.18)."""
    run = subprocess.run([sys.executable, "-c", RIGHTS], capture_output=True, check=True, timeout=TIMEOUT_S)
    found = json.loads(run.stdout)
    assert len(found) == 9
    assert set(found.values()) == {"PermissionError"}


def test_a_server_is_refused_where_linux_cannot_protect_its_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kaas.server.config.serve_config.available", lambda: False)
    with pytest.raises(InvalidConfig, match="`sandbox: false`") as refused:
        Settings(keys=str(tmp_path)).executors_sandbox(tmp_path)
    assert refused.value.field == "sandbox"
    assert Settings(keys=str(tmp_path), sandbox=False).executors_sandbox(tmp_path) is None
    assert Settings().executors_sandbox(tmp_path) is None  # without keys: all on the machine may do all


def test_hidden_paths_stay_hidden_within_visible_paths(tmp_path: Path) -> None:
    for name in ("a/b/secret/deep", "a/b/open", "a/c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/link").symlink_to(tmp_path / "a/b/secret")
    hidden = [tmp_path / "a/b/secret"]
    assert set(sandbox.visible([tmp_path, tmp_path / "a/b/secret/deep"], hidden)) == {
        tmp_path / "a/b/open",
        tmp_path / "a/c",
    }
    assert sandbox.visible([tmp_path / "a/c", tmp_path / "nowhere"], hidden) == [tmp_path / "a/c"]
