"""The promise: code that takes long to compile costs its own client, and no other client waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import numpy as np
import pytest

import kaas
from kaas.errors import CompileLimitExceeded, DeadlineExceeded
from tests.pool.on_processes.test_compilers import BRANCHES
from tests.providers import write_metadata
from tests.server.servers import DEVICE, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

LIMIT_S = 3.0


PROVIDER = """
import kaas

def images(name, version):
    return kaas.Library.from_file({ptx!r})
"""


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose code takes long to compile."""
    packages, ptx = tmp_path / "packages", tmp_path / "packages" / "slow.ptx"
    write_metadata(packages, "slow", "the_slow_code:images")
    ptx.write_text(f"{BRANCHES}\n// {token_hex(8)}\n")
    (packages / "the_slow_code.py").write_text(PROVIDER.format(ptx=str(ptx)))
    monkeypatch.syspath_prepend(packages)
    return "slow"


@pytest.fixture(params=["fence", pytest.param("process", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest, tmp_path: Path, provider: str) -> Iterator[Server]:
    pool = {"devices": [DEVICE], "isolation": request.param, "compile_limit_s": LIMIT_S}
    started = Server(tmp_path, {"pool": pool, "code": {"any": True, "providers": [provider]}})
    yield started
    started.close()


def client_of(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def launched(code: kaas.Library) -> kaas.KTask:
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(code, "k", 1, 32, [kaas.Out(out)])], [out])


def bomb() -> kaas.KTask:
    return launched(kaas.Library.from_ptx(f"{BRANCHES}\n// {token_hex(8)}\n"))


def honest(client: kaas.Client, factor: float) -> None:
    x = np.arange(WIDTH, dtype=np.float32)
    np.testing.assert_array_equal(client.call(scaled(factor), {"x": x}).result(TIMEOUT_S), factor * x)


def test_a_compile_bomb_ends_its_compiler_and_no_other_client_waits(server: Server) -> None:
    with client_of(server, "alice") as mallory, client_of(server, "bob") as bob:
        first, second = mallory.call(bomb(), {}), mallory.call(bomb(), {})
        for factor in (2.0, 3.0):
            honest(bob, factor)
        assert not second.done()  # of one client's code one is compiled at a time
        for each in (first, second):
            with pytest.raises(CompileLimitExceeded, match="3 processor seconds"):
                each.result(TIMEOUT_S)
        honest(mallory, 2.0)
        flows = mallory.usage()["flows"]
        assert sum(flow["outcomes"].get("compiled", 0) for flow in flows) == 2
        assert sum(flow["device_ns"] for flow in flows) / 1e9 >= 2 * (LIMIT_S - 0.5)
        assert sum(flow["device_ns"] for flow in bob.usage()["flows"]) / 1e9 < LIMIT_S


def test_a_caller_with_a_deadline_does_not_wait_for_the_limit_and_pays_all_the_same(server: Server) -> None:
    with client_of(server, "alice") as mallory:
        task = bomb()
        with pytest.raises(DeadlineExceeded):
            mallory.call(task, {}, deadline_s=0.5).result(TIMEOUT_S)
        with pytest.raises(CompileLimitExceeded):
            mallory.call(task, {}).result(TIMEOUT_S)
        assert sum(flow["outcomes"].get("compiled", 0) for flow in mallory.usage()["flows"]) == 1


def test_no_other_client_waits_for_code_that_a_provider_names(provider: str, server: Server) -> None:
    with client_of(server, "alice") as alice, client_of(server, "bob") as bob:
        slow = alice.call(launched(kaas.Library.provided(provider, "any", "1")), {})
        for factor in (2.0, 3.0):
            honest(bob, factor)
        with pytest.raises(CompileLimitExceeded, match="3 processor seconds"):  # it has had no device yet
            slow.result(TIMEOUT_S)
        flows = alice.usage()["flows"]
        assert sum(flow["outcomes"].get("compiled", 0) for flow in flows) == 1
