"""Users of one pool share it well: every idle device is used, device time is shared by weight, and a passing request
costs the others little. Each promise holds under every policy that makes it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from benchmarks import placement, temporaries
from benchmarks.tenants import N, X, copier, holder, pool
from kaas.errors import DeadlineExceeded
from kaas.scheduling.decisions import Dispatch
from kaas.scheduling.events import RequestArrived, RequestDone
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.recording import PoolEpoch, read
from kaas.scheduling.simulation.scenario_file import read as scenario_of
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate
from tests.api.conftest import STEPS
from tests.lanes import spread

MB = 1 << 20
FAIR = [name for name, policy in POLICIES.items() if getattr(policy, "fair", False)]
assert "cfs_affinity" in FAIR, "or no policy is tested below"


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pools of these tests have their names in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime", numbered=True)))
        yield


# --- n functions that fit on n devices have a device each


@pytest.mark.processes
@pytest.mark.parametrize("policy", spread(POLICIES, 3))
def test_as_many_functions_as_devices_load_their_constants_once(policy: str) -> None:
    """They are called one after the other, and each takes most of a device."""
    assert placement.measure(policy, 3, kaas.Device("software", 8 * MB), 5 * MB) == 0


def in_turns(policy: str, sizes_mb: list[float], *, slots: int = 1, rounds: int = 4, before: int = 0) -> Simulated:
    """Run functions in turns on so many devices of 64 MB; before: rounds of others, whose data fill the devices."""
    functions = {f"f{n}": {"memory_mb": mb, "load_s": 1, "run_s": 1} for n, mb in enumerate(sizes_mb)}
    others = {f"other{n}": {"memory_mb": 60, "load_s": 1, "run_s": 1} for n in range(len(sizes_mb))}
    called = list(others) * before + list(functions) * rounds
    return simulate(
        scenario_of(
            {
                "policy": {"name": policy},
                "devices": [{"memory_mb": 64, "slots": slots}] * len(sizes_mb),
                "functions": functions | others,
                "requests": [{"at_s": 10 * number, "function": name} for number, name in enumerate(called)],
            }
        )
    )


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    "sizes_mb", [[40.0] * 4, [60.0] * 4, [30.0] * 4, [60.0, 20.0, 40.0, 33.0], [40.0] * 16], ids=str
)
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_loaded_twice(policy: str, sizes_mb: list[float], slots: int, before: int) -> None:
    result = in_turns(policy, sizes_mb, slots=slots, before=before)
    first_round = (before + 1) * len(sizes_mb)
    assert [each for each in result.dispatches if each.request >= first_round and each.start != "hit"] == []


# --- clients of equal weight have equal device time


@pytest.mark.processes
@pytest.mark.parametrize("policy", FAIR)
def test_a_client_that_copies_and_one_that_computes_get_equal_device_time(policy: str, tmp_path: Path) -> None:
    """Compare the times of two clients while both have waiting requests, on a device whose copies and kernels take a
    modelled time."""
    copied_bytes, kernel_s, each_way_s = MB, 2.5e-3, 5e-3
    model = softgpu.Model(copy_bytes_per_s=copied_bytes / each_way_s, kernels={"step": softgpu.Takes(kernel_s)})
    with pool("fair", [kaas.Device("software", 64 * MB, model=model)], policy, record=str(tmp_path / "record")):
        copy, compute = kaas.register(copier(copied_bytes), {}), holder(4 * N, 1.0)
        data = np.ones(copied_bytes // 4, np.float32)
        for warm in (copy.options(client="first").call(x=data), compute.options(client="first").call(x=X)):
            warm.result()
        (device,) = kaas.status().devices
        assert device.info is not None
        os.kill(device.info.pid, signal.SIGSTOP)  # until everything waits
        answers = [copy.options(client="copies").call(x=data) for _ in range(40)]
        answers += [compute.options(client="computes").call(x=X) for _ in range(160)]
        while kaas.status().queued < len(answers) - 1:
            pass
        os.kill(device.info.pid, signal.SIGCONT)
        for answer in answers:
            answer.result()
    charged = charges_while_both_wait(tmp_path / "record", {"copies": 40, "computes": 160})
    assert min(charged["copies"]) >= 2 * each_way_s
    assert min(charged["computes"]) >= kernel_s
    copies_s, computes_s = sum(charged["copies"]), sum(charged["computes"])
    assert abs(copies_s - computes_s) <= 0.1 * max(copies_s, computes_s)


def charges_while_both_wait(record: Path, requests: dict[str, int]) -> dict[str, list[float]]:
    """Device seconds of each client's requests, while all clients had some that waited."""
    client_of: dict[int, str] = {}
    arrived, dispatched = Counter[str](), Counter[str]()
    charged: dict[str, list[float]] = {name: [] for name in requests}
    for _, entry in read(record):
        assert not isinstance(entry, PoolEpoch) or not client_of
        if isinstance(entry, PoolEpoch):
            continue
        event, decisions = entry
        match event:
            case RequestArrived(request=request, client=client):
                client_of[request] = client
                arrived[client] += 1
            case RequestDone(request=request) if all(map(arrived.__contains__, requests)):
                charged[client_of[request]].append(event.device_s)
        dispatched.update(client_of[each.request] for each in decisions or () if isinstance(each, Dispatch))
        if any(dispatched[name] == count for name, count in requests.items()):
            return charged
    raise AssertionError(f"no client ran out of requests: {dispatched}")


@pytest.mark.parametrize("weight", [1, 2])
@pytest.mark.parametrize("policy", FAIR)
def test_loads_count_as_kernels_do(policy: str, weight: int) -> None:
    """One client's functions never find their memory; its loads count against it, by its weight."""
    functions: dict[str, Any] = {
        f"load{n}": {"memory_mb": 40, "load_s": 0.09, "run_s": 0.01, "client": "loads"} for n in range(3)
    }
    functions["run"] = {"memory_mb": 1, "run_s": 0.02, "client": "runs"}
    told = [{"function": f"load{n % 3}"} for n in range(400)] + [{"function": "run"}] * 2000
    scenario = {
        "policy": {"name": policy},
        "devices": [{"memory_mb": 64}],
        "functions": functions,
        "clients": {"loads": {"weight": weight}, "runs": {}},
        "requests": told,
    }
    had = {"loads": 0.0, "runs": 0.0}
    left = {"loads": 400, "runs": 2000}
    for each in simulate(scenario_of(scenario)).dispatches:
        client = "loads" if each.request < 400 else "runs"
        left[client] -= 1
        had[client] += 0.02 if client == "runs" else 0.01 + 0.09 * (each.start != "hit")
        if not min(left.values()):
            break
    assert had["loads"] / weight == pytest.approx(had["runs"], rel=0.1)


@pytest.mark.processes
@pytest.mark.parametrize("policy", FAIR)
def test_kernels_that_never_end_count_as_others_do(policy: str) -> None:
    """Their client waits until the other one has had the device for as long as they had it."""
    with pool("endless", [kaas.Device("software", 8 * MB)], policy, run_limit_s=1.0):
        endless = [kaas.call(spinning(ENDLESS + n), {}, client="endless") for n in range(3)]
        short = [kaas.call(spinning(n), {}, client="short") for n in range(5)]
        assert isinstance(endless[0].exception(), DeadlineExceeded)
        for answer in short:
            answer.result()
        assert not endless[1].done()
        for answer in endless[1:]:
            answer.cancel()


ENDLESS = 10**12
"""Steps of a kernel, about as many nanoseconds."""


def spinning(steps: int) -> kaas.KTask:
    """A kTask of its own for each number of steps, so that none is in quarantine for another."""
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), kaas.i64(steps)])], [out])


# --- a request that passes by costs others little


@pytest.mark.processes
@pytest.mark.parametrize("slots", [1, 2])
def test_a_temporary_costs_each_other_function_one_reload_at_most(slots: int) -> None:
    """Two fit together, and one of them with the temporary: the other one is loaded again, once."""
    assert temporaries.measure(kaas.Device("software", 8 * MB), 5 * MB // 2, 5 * MB, slots, turns=5) == 1
