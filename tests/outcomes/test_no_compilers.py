"""A client starts no compiler at a server unless its operator allows it, and a running one ends with the server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import numpy as np
import pytest

import kaas
from kaas.errors import KaasError
from tests.providers import write_metadata
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, Server
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

PROVIDER = """
import os, subprocess
from pathlib import Path
import kaas
from kaas import errors

def images(name, version):
    if name == "built":
        return kaas.Library.from_file({ptx!r})
    if os.environ.get("KAAS_BUILD_PROVIDED") == "0":
        raise errors.NotProvided(f"{{name}} is not built here", has=())
    compiler = subprocess.Popen(["sleep", "1000"])
    Path({pid_file!r}).write_text(str(compiler.pid))
    compiler.wait()
"""


@pytest.fixture
def pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file in which a started compiler writes its pid: among the temporary files of executors."""
    folder = kaas.cache_root() / "tmp"
    folder.mkdir(exist_ok=True)
    pid_file = folder / f"compiler-{token_hex(4)}"
    packages = tmp_path / "packages"
    write_metadata(packages, "slow", "a_slow_provider:images")
    ptx = str(ROOT / "tests" / "api" / "kernels" / "steps.ptx")
    (packages / "a_slow_provider.py").write_text(PROVIDER.format(ptx=ptx, pid_file=str(pid_file)))
    monkeypatch.syspath_prepend(packages)
    yield pid_file
    pid_file.unlink(missing_ok=True)


def task(name: str) -> kaas.KTask:
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", WIDTH, "float32")
    library = kaas.Library.provided("slow", name, "1")
    return kaas.KTask([kaas.Kernel(library, "scale", 4, 256, [kaas.In(x), kaas.Out(y), kaas.f32(2.0),
                                                               kaas.u32(WIDTH)])], [y])  # fmt: skip


def client(server: Server) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / "alice.keys", patience_s=TIMEOUT_S)


def alive(pid: int) -> bool:
    try:
        state = re.search(r"^State:\s+(\w)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends between the opening and the reading
        return False
    return state is not None and state[1] != "Z"


def test_a_ktask_that_is_not_built_is_refused(serve: Serve, pid_file: Path) -> None:
    server = serve({"code": {"providers": ["slow"]}})
    ones = np.ones(WIDTH, np.float32)
    with client(server) as alice:
        assert alice.call(task("built"), {"x": ones}).result()[0] == 2
        with pytest.raises(KaasError, match="not built"):
            alice.call(task("another"), {"x": ones}).result()
    assert not pid_file.exists()


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_compiler_that_the_operator_allows_ends_with_the_server(serve: Serve, pid_file: Path, end: str) -> None:
    server = serve({"code": {"providers": ["slow"], "build": True}, "drain_s": 0.1})
    with client(server) as alice:
        waits = alice.call(task("another"), {"x": np.ones(WIDTH, np.float32)})
        until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        compiler = int(pid_file.read_text())
        assert alive(compiler)
        getattr(server.process, end)()
        until(lambda: not alive(compiler))
        waits.cancel()
    assert os.path.exists(pid_file)
