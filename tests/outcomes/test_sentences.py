"""Errors between an operator, a client and a server are sentences, and never tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import InvalidConfig
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, scaled
from tests.timeouts import TIMEOUT_S

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kaas.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.full
@pytest.mark.processes
def test_usage_of_a_server_without_keys_is_refused_with_a_sentence(serve: Serve) -> None:
    server = serve()
    ended = ran("usage", "--server", server.endpoint)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("Unreachable: ")
    ended = ran("usage", "--server", "tcp://192.0.2.1:7600")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert ended.stderr.startswith("InvalidConfig: without keys a client speaks to this machine only")


@pytest.mark.processes
def test_a_call_s_future_has_the_traceparent_of_the_server_s_span(serve: Serve) -> None:
    server = serve()
    with kaas.Client(server.endpoint, keys=server.key_of("alice")) as client:
        function = client.register(scaled())
        ones = np.ones(WIDTH, np.float32)
        future = client.call(function, {"x": ones}, trace=f"00-{TRACE}-00f067aa0ba902b7-01")
        assert (future.result() == 2).all()
        version, trace, span, flags = future.traceparent.split("-")
        assert (version, trace, flags) == ("00", TRACE, "01")
        assert span != "00f067aa0ba902b7"
        plain = client.call(function, {"x": ones})
        plain.result()
        assert plain.traceparent == ""


@pytest.mark.parametrize("written", [b"[1, 2]", b"\xff\xfe", b"PK\x03\x04", b'{"a": 7}', b'{"a": "xyz"}'])
def test_signatures_that_are_none(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "signatures.json"
    path.write_bytes(written)
    with pytest.raises(InvalidConfig, match="holds no signatures"):
        kaas.remote.signing.read_signatures(str(path))


@pytest.mark.parametrize("path", ["/nowhere/at/all", None, 7, {}])
def test_signatures_that_are_nowhere(path: Any) -> None:
    with pytest.raises(InvalidConfig):
        kaas.remote.signing.read_signatures(path)


@pytest.mark.processes
def test_signing_needs_no_import_of_its_own() -> None:
    program = "import kaas; print(kaas.remote.signing.read_signatures.__name__)"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("read_signatures\n", "")


@pytest.mark.processes
def test_an_address_that_is_none_is_named() -> None:
    pytest.importorskip("ray")
    program = "import kaas\ntry:\n    kaas.init('192.0.2.9')\nexcept kaas.KaasError as error:\n    print(error)"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert told.stdout == "cannot connect to Ray at '192.0.2.9': Invalid address format: 192.0.2.9\n"
