"""A user's programs run together with others on the machine: another pool, a shell that ignores Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kaas

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_the_demonstration_leaves_a_pool_of_the_default_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert kaas.init(ray=False, devices=[kaas.Device("software", 16 << 20)], name="kaas")
    try:
        before = kaas.status().pid
        command = [sys.executable, "-m", "kaas.cli", "demo", "--no-ray", "--seconds", "0.5", "--vertices", "32"]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "all equal to NumPy's" in ended.stdout
        assert kaas.status().pid == before  # it has left that pool alone
    finally:
        kaas.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "cannot connect to Ray at '127.0.0.1:1'"),
        (("--no-ray",), "--address is that of a Ray cluster: it does not go with --no-ray"),
    ],
)
def test_a_command_with_a_rays_address_shows_no_pool_without_ray(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of the same name that runs here without Ray is another pool."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert kaas.init(ray=False, devices=[kaas.Device("software", 16 << 20)], name="kaas")
    try:
        command = [sys.executable, "-m", "kaas.cli", "status", "--address", "127.0.0.1:1", *options]
        ended = subprocess.run(command, capture_output=True, text=True)
    finally:
        kaas.shutdown()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert words in ended.stderr


@pytest.mark.full
def test_tests_of_ctrl_c_in_a_job_in_the_background() -> None:
    """Like `make test &`: its processes ignore SIGINT."""
    command = [sys.executable, "-m", "pytest", "-x", "-k", "interrupt", "-p", "no:cacheprovider"]
    files = ["tests/api/test_opening.py", "tests/api/test_process_pool.py"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
            signal.signal(signal.SIGINT, before)
            said, _ = started.communicate()
    finally:
        signal.signal(signal.SIGINT, before)
    assert started.returncode == 0, said
