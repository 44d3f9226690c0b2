"""For all tests: the software devices and the Ray that those of one process share, and which run side by side."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import softgpu as software
from tests.hanging import HangingTests
from tests.lanes import Lane, add_option
from tests.wheels import build

# Ray reads these when it is imported or started; with the default of this one it would leave a token in the home folder
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# its default, 15, starves Ray's processes, executors among them, while other tests keep all cores busy
os.environ.setdefault("RAY_worker_niceness", "0")
# tables are as wide as a test says; readline, which pytest imports, sets these for the processes that it starts
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

if find_spec("hypothesis"):  # not on every machine whose GPU is tested
    from hypothesis import HealthCheck, settings

    for name, examples in {"quick": 10, "test": 20, "all": 200}.items():
        settings.register_profile(
            name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples
        )

SOFTGPU_BYTES = (256 << 20, 256 << 20, 256 << 20)


@pytest.fixture(scope="session")
def softgpu() -> tuple[int, ...]:
    """Three software devices of 256 MB in this process; their sizes in bytes.

    A process is given its devices once, so every test that wants some in-process takes them from here.
    """
    software.load(SOFTGPU_BYTES)
    return SOFTGPU_BYTES


@pytest.fixture(autouse=True)
def nothing_refused(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that makes a driver call which the software GPU refuses, unless it is marked `refusals`."""
    yield
    made = software.refused_calls()
    assert made == () or request.node.get_closest_marker("refusals")


@pytest.fixture(scope="module", autouse=True)
def nothing_attached() -> Iterator[None]:
    """Fails a module that leaves its process attached to a pool, which the modules after it would meet."""
    yield
    session = sys.modules.get("kaas.api.session")
    assert session is None or session.HERE.session is None


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of KaaS and of softgpu, which it needs, by module; made once."""
    folder = tmp_path_factory.mktemp("dist")
    return {module: build(module, folder) for module in ("kaas", "softgpu")}


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """Ray as `kaas.init` starts it, but without its dashboard: one for all whose pool is from `start`."""
    import ray

    from kaas.api.ray_session import SOFTWARE_SLOTS
    from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE

    ray.init("local", resources={SOFTWARE_RESOURCE: SOFTWARE_SLOTS}, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def start(shared_ray: None) -> Iterator[Callable[..., bool]]:  # noqa: ARG001 - Ray runs
    """`kaas.init`, for the one pool of a module, which ends with it."""
    import kaas

    yield kaas.init
    kaas.shutdown()


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """No Ray yet: for a module that starts one in its own way. It runs after those that share theirs."""
    import ray

    import kaas

    ray.shutdown()
    yield
    kaas.shutdown()
    ray.shutdown()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--lane`."""
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """A test that hangs fails, and a lane runs what is in it."""
    config.pluginmanager.register(HangingTests())
    lane = config.getoption("lane")
    config.pluginmanager.register(Lane(lane))
    if find_spec("hypothesis"):
        settings.load_profile(lane)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with a Ray of their own run last."""
    items.sort(key=lambda item: "own_ray" in getattr(item, "fixturenames", ()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The marker `ray` is on every test that has one: `make test` goes by it."""
    if {"shared_ray", "own_ray"} & set(getattr(item, "fixturenames", ())) and not item.get_closest_marker("ray"):
        pytest.fail("it starts Ray, and has not its marker: pytest.mark.ray", pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2 --dist loadfile` files stay together as `tests.processes` says."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.processes import FilesInProcesses

    return FilesInProcesses(config, log)
