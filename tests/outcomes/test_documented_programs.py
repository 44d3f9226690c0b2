"""The programs of a page run unchanged, in an environment that has the wheels and nothing of the checkout.

The Python programs of a page run in order, as one, in a folder of their own; a block that is marked `python fragment`
is none. Where a page says `kaas.init()` they share a Ray.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic

import onnx
import pytest

from kaas.worker.sandbox import available
from tests.compilers.onnx_cases import classifier
from tests.outcomes.test_documented_commands import FENCE, PAGES
from tests.timeouts import TIMEOUT_S
from tests.wheels import ROOT, build, install, run

pytestmark = pytest.mark.full

SERVED = "tcp://10.0.0.5:7600"
WITHOUT_RAY = "\nimport sys\nassert 'ray' not in sys.modules\n"
RAY = """
import sys
import ray
from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE
from kaas.api.ray_session import SOFTWARE_SLOTS
started = ray.init("local", resources={SOFTWARE_RESOURCE: SOFTWARE_SLOTS}, include_dashboard=False, log_to_driver=False)
print("address", started.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


def program(page: Path) -> str:
    """Return all programs of a page as one."""
    return "\n".join(body for info, body in FENCE.findall(page.read_text()) if info == "python")


def needs_ray(source: str) -> bool:
    return re.search(r"^kaas\.init\(\)", source, re.MULTILINE) is not None


WITH_PROGRAMS = {page.stem: page for page in PAGES if program(page)}
ON_RAY = [name for name, page in WITH_PROGRAMS.items() if needs_ray(program(page))]
OTHERS = sorted(WITH_PROGRAMS.keys() - set(ON_RAY))


@pytest.fixture(scope="module")
def python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that is installed from wheels."""
    folder = tmp_path_factory.mktemp("installed")
    made = [*wheels.values(), *(build(module, folder) for module in ("tvm_backend", "cutlass_blas"))]
    return install(folder / "venv", made) / "python"


@pytest.fixture
def served(python: Path, tmp_path: Path) -> Iterator[str]:
    """Start a server as docs/serve.md does, on a software GPU of this machine. Give its address."""
    (settings,) = (
        body for info, body in FENCE.findall((ROOT / "docs/serve.md").read_text()) if info.startswith("yaml kaas")
    )
    assert "listen: {host: 10.0.0.5}" in settings
    settings = settings.replace("{host: 10.0.0.5}", "{host: 127.0.0.1, port: 0}")
    here = ["pool: {devices: [{kind: software}]}", f"name: documented-{token_hex(4)}", f"sandbox: {available()}"]
    (tmp_path / "kaas.yaml").write_text("\n".join([settings, *here]))
    kaas = python.parent / "kaas"
    run(tmp_path, kaas, "keys", "new", "ada")
    with started([kaas, "serve", "--config", "kaas.yaml"], tmp_path, r"kaas serves at (tcp://\S+)") as address:
        yield address


@pytest.fixture(scope="module")
def cluster(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray whose processes run from that environment."""
    with started([python, "-c", RAY], tmp_path_factory.mktemp("ray"), r"address (\S+)") as address:
        yield address


@pytest.mark.parametrize("name", OTHERS)
def test_programs_of_a_page_run_without_ray(
    name: str, python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = program(WITH_PROGRAMS[name])
    if SERVED in source:
        source = source.replace(SERVED, request.getfixturevalue("served"))
    source = source.replace("kaas.init(", f'kaas.init(name="documented-{token_hex(4)}", ')
    run(tmp_path, python, "-c", source + WITHOUT_RAY)


@pytest.mark.ray
@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("name", ON_RAY)
def test_programs_of_a_page_run_on_ray(name: str, python: Path, cluster: str, tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "resnet50.onnx")
    source = program(WITH_PROGRAMS[name]).replace("kaas.init()", 'kaas.init(name="documented")')
    run(tmp_path, python, "-c", source, RAY_ADDRESS=cluster)


def test_the_environment_is_not_the_checkout(python: Path, tmp_path: Path) -> None:
    shown = run(tmp_path, python, "-c", "import cutlass_blas, kaas, tvm_backend as t; print(cutlass_blas, kaas, t)")
    assert str(ROOT) not in shown
    assert shown.count("site-packages") == 3


def test_the_first_program_of_the_readme_is_short_and_its_page_too() -> None:
    assert len(program(ROOT / "README.md").splitlines()) <= 20
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


# --- processes next to a program


@contextmanager
def started(command: list[str | Path], folder: Path, pattern: str) -> Iterator[str]:
    """Wait until a pattern matches the output of a running process. Return the match."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        yield awaited(process, re.compile(pattern), log)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()


def awaited(process: subprocess.Popen[bytes], pattern: re.Pattern[str], log: Path) -> str:
    assert process.stdout is not None
    said, ends_s = b"", monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not (found := pattern.search(said.decode(errors="replace"))):
            assert selector.select(ends_s - monotonic()), said
            more = os.read(process.stdout.fileno(), 1 << 16)
            assert more, (said, log.read_text())
            said += more
    return found[1]
