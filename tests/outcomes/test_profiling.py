"""A user asks what share a function needs: `kaas profile` on a software device whose kernels take modelled time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import kaas
from kaas.bench.profiling import grid, measuring, profiler
from kaas.cli.main import app
from kaas.profiles import read_profiles
from softgpu import Model, Takes
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

SMS, TAKES_S = 128, 0.02
CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 x, .param .u64 y)
{ .reg .b64 %x, %y; .reg .b32 %v;
ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.global.u32 %v, [%x]; st.global.u32 [%y], %v; ret; }"""
MODEL = f"sms = {SMS}\n[kernels]\nf = [{TAKES_S}]\n"
SMALL = ["--sms", "0.125,0.25,0.5,1", "--quota", "0.5,0.75,1"]


def task_of(batch: int = 1) -> kaas.KTask:
    """Return a kTask whose one kernel fills a quarter of the device for each of its batch."""
    x, y = kaas.Buffer("x", (batch, 64), "uint32"), kaas.Buffer("y", (batch, 64), "uint32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(CODE), "f", 32 * batch, 1, [kaas.In(x), kaas.Out(y)])
    return kaas.KTask([kernel], [y], name=f"quarter {batch}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a kTask, a model, and the description of a device."""
    monkeypatch.chdir(tmp_path)
    Path("task.json").write_text(task_of().to_json())
    variants = [kaas.Variant(task, tuple(task.inputs)) for task in map(task_of, (1, 4))]
    kaas.CompiledModel("quarters", variants, {}).save("quarters.kaas")
    Path("device.toml").write_text(MODEL)
    monkeypatch.setattr(grid, "GAIN", 1.2)  # other programs take the processor meanwhile: test_grid.py has the bounds
    monkeypatch.setattr(grid, "ON_LINE", 0.3)
    for name, value in {"LATENCY_S": 0.2, "FEWEST_LATENCIES": 5, "MOST_BLOCKS": 3, "BLOCK_REQUESTS": 5}.items():
        monkeypatch.setattr(measuring, name, value)
    return tmp_path


def profiled(*arguments: str, device: str | None = "device.toml") -> Result:
    """Run `kaas profile`."""
    given = [] if device is None else ["--device", device]
    return CliRunner().invoke(app, ["profile", *arguments, *given], catch_exceptions=False)


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = msgspec.json.decode(result.stdout.splitlines()[-1])
    return found


def measured(result: Result) -> list[str]:
    """Return what the command has told of points that it measured."""
    return [line for line in result.stderr.splitlines() if line.endswith("requests/s")]


@pytest.mark.usefixtures("folder")
def test_a_user_sees_what_share_a_function_needs_and_a_pool_knows_it(tmp_path: Path) -> None:
    first = profiled("task.json", *SMALL, "--json", "--plot", "figure.png")
    assert len(measured(first)) == 6, "not of all SMs, where a half is no faster than a quarter, nor of all times"
    found = told(first)
    assert found["device"] == {"kind": "software", "sms": SMS, "sm_step": 4}
    (function,) = found["functions"]
    assert (function["function"], function["label"]) == (task_of().key, "quarter 1")
    points = {(each["sms"], each["quota"]): each for each in function["points"]}
    assert sorted(points) == [(sms, quota) for sms in (0.125, 0.25, 0.5) for quota in (0.5, 0.75, 1)]
    rates = {place: each["rate_per_s"] for place, each in points.items()}
    assert rates[0.25, 1] == pytest.approx(1 / TAKES_S, rel=0.4)  # other programs take the processor meanwhile
    assert 1.4 < rates[0.25, 1] / rates[0.125, 1] < 2.4, "on half of the SMs the blocks take two waves"
    assert 0.7 < rates[0.5, 1] / rates[0.25, 1] < 1.3, "the function fills a quarter"
    for sms in (0.125, 0.25, 0.5):
        assert 1.6 < rates[sms, 1] / rates[sms, 0.5] < 2.3, "throughput over time is a line"
        assert points[sms, 1]["p50_s"] <= points[sms, 1]["p99_s"]
        assert points[sms, 1]["device_bytes"] >= 32
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")

    again = profiled("task.json", *SMALL)
    assert measured(again) == [], "the file has all of it"
    assert "on the line" in again.stdout
    assert "32 of 128" in again.stdout
    more = profiled("task.json", "--sms", "0.03,0.25", "--quota", "1", "--json")
    assert measured(more) == [line for line in measured(more) if "4 of 128 SMs, 1 of the time" in line] != []
    assert "0.03 of 128 SMs is rounded up to 4, the least partition" in more.stderr
    (profile,) = read_profiles("profiles.jsonl")
    assert len(profile.points) == 10, "points of an earlier run stay"

    config = kaas.Config(devices=(kaas.Device(model=Model.from_file("device.toml")),), profiles="profiles.jsonl")
    kaas.init(ray=False, name=f"known {tmp_path}", config=config)
    try:
        function = kaas.register(task_of())
        x = np.zeros((1, 64), np.uint32)
        assert function.call(x=x).result(TIMEOUT_S)[0, 0] == 0
        with pytest.raises(kaas.errors.InvalidShare, match="its profile's least p99 is"):
            kaas.set_share(function, "auto", slo_s=TAKES_S / 2)
        kaas.set_share(function, "auto", slo_s=10.0)
        assert function.call(x=x).result(TIMEOUT_S)[0, 0] == 0
        (share,) = kaas.status().shares
        assert share.promise is not None
        assert share.promise.trial_sms is None, "what is measured needs no trial"
        assert share.promise.instances
        kaas.set_share(function, None)
        (known,) = kaas.stats().profiles
        assert known.points == profile.points, "the policy was told, too: tests/pool/core/test_profiles.py"
    finally:
        kaas.shutdown()


@pytest.mark.usefixtures("folder")
def test_a_model_is_profiled_by_batch_and_a_ktask_has_its_own_only() -> None:
    with pytest.raises(kaas.errors.InvalidRequest, match="--batch 2: model 'quarters' has variants for 1, 4"):
        profiled("quarters.kaas", *SMALL, "--batch", "1,2")
    with pytest.raises(kaas.errors.InvalidRequest, match="--batch 2: a kTask has its own batch only"):
        profiled("task.json", *SMALL, "--batch", "2")
    assert not Path("profiles.jsonl").exists()
    one, four = told(profiled("quarters.kaas", "--sms", "1", "--quota", "1", "--json"))["functions"]
    assert [each["batch"] for each in (one, four)] == [1, 4]
    assert four["points"][0]["device_bytes"] > one["points"][0]["device_bytes"]
    only = told(profiled("quarters.kaas", "--sms", "0.25", "--quota", "1", "--batch", "4", "--json"))["functions"]
    assert [each["batch"] for each in only] == [4]
    assert 2.5 < four["points"][0]["rate_per_s"] / only[0]["points"][0]["rate_per_s"] < 5, "four waves on a quarter"
    kept = {each.batch: each for each in read_profiles("profiles.jsonl")}
    assert {each.family for each in kept.values()} == {"quarters"}
    assert [len(kept[batch].points) for batch in (1, 4)] == [1, 2]
    fresh = profiled("quarters.kaas", "--sms", "1", "--quota", "1", "--batch", "4", "--fresh")
    assert len(measured(fresh)) == 1
    assert [len(each.points) for each in read_profiles("profiles.jsonl")] == [1, 1]


def test_a_profiler_that_is_killed_leaves_points_from_which_the_next_one_goes_on(folder: Path) -> None:
    command = [sys.executable, "-m", "kaas.cli", "profile", "task.json", *SMALL, "--device", "device.toml"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.endswith("requests/s\n"))
        running.send_signal(signal.SIGKILL)
    (before,) = read_profiles("profiles.jsonl")
    assert before.points
    rest = profiled("task.json", *SMALL)
    assert len(measured(rest)) == 6 - len(before.points)
    (after,) = read_profiles("profiles.jsonl")
    assert {*before.points} <= {*after.points}


HEARS = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.argv[0] = "kaas"
runpy.run_module("kaas.cli", run_name="__main__")
"""


def test_ctrl_c_leaves_what_was_measured_and_shows_it(folder: Path) -> None:
    command = [sys.executable, "-c", HEARS, "profile", "task.json", *SMALL, "--device", "device.toml"]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, **pipes) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.endswith("requests/s\n"))
        running.send_signal(signal.SIGINT)
        shown, said = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1
    assert "16 of 128" in shown
    assert "ended early: the same command goes on with what profiles.jsonl has" in said
    (kept,) = read_profiles("profiles.jsonl")
    assert 1 <= len(kept.points) < 6


class Production:
    """A pool with a function that another thread calls all the time. answered: its requests."""

    def __init__(self, name: str) -> None:
        self.name, self.answered = name, 0
        device = kaas.Device(model=Model(sms=SMS, kernels={"f": Takes(TAKES_S)}))
        kaas.init(ray=False, name=name, config=kaas.Config(devices=(device,), slots=4))
        self.function = kaas.register(task_of(2))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self) -> None:
        x = np.zeros((2, 64), np.uint32)
        while not self._ending.is_set():
            self.function.call(x=x).result(TIMEOUT_S)
            self.answered += 1

    def end(self) -> None:
        self._ending.set()
        self._thread.join(TIMEOUT_S)
        kaas.shutdown()


@pytest.fixture
def production(folder: Path) -> Iterator[Production]:
    made = Production(f"production {folder}")
    yield made
    made.end()


def test_production_goes_on_beside_a_profiler_with_a_share_of_its_own(production: Production) -> None:
    arguments = ["profile", "task.json", "--name", production.name, "--sms", "0.25", "--quota", "0.2,0.4", "--json"]
    before = production.answered
    ran = subprocess.run(
        [sys.executable, "-m", "kaas.cli", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert production.answered > before + 10
    (function,) = msgspec.json.decode(ran.stdout)["functions"]
    low, high = (each["rate_per_s"] for each in function["points"])
    assert 1.5 < high / low < 2.7
    assert kaas.status().shares == (), "the profiler's share ends with it"
    known = {each.function: [point.quota for point in each.points] for each in kaas.stats().profiles}
    assert known["quarter 1"] == [0.2, 0.4], "the pool knows it at once"
    kaas.set_share(production.function, kaas.Share(1.0, (0.9, 1.0)))
    Path("same.json").write_text(task_of(2).to_json())
    same = subprocess.run(
        [sys.executable, "-m", "kaas.cli", "profile", "same.json", *arguments[2:]], capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert "InvalidRequest: function 'quarter 2' has a share in this pool" in same.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "kaas.cli", *arguments, "--fresh"], capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "InvalidShare" in refused.stderr
    assert "quarter 2" in refused.stderr
    (left,) = kaas.status().shares
    assert left.of == "function 'quarter 2'", "the share of production stays"


@pytest.mark.usefixtures("production")
def test_a_function_that_fails_leaves_no_share_of_the_profiler_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> None:
        assert kaas.status().shares != ()
        raise kaas.errors.DeviceLost("the device is gone", device="")

    monkeypatch.setattr(profiler, "measure", measure)
    function, x = kaas.register(task_of()), np.zeros((1, 64), np.uint32)
    assert function.call(x=x).result(TIMEOUT_S)[0, 0] == 0
    (variant,) = profiler.profiled_variants(function, None)
    measuring_it = profiler.Profiler(
        Path("profiles.jsonl"), profiler.devices_here(), grid.ProfileGrid((0.25,), (0.4,)), False, lambda: False, print
    )
    with pytest.raises(kaas.errors.DeviceLost):
        measuring_it.run(variant, {"x": x})
    assert kaas.status().shares == ()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["task.json", "--sms", "1..0.5"], "--sms: a range goes from a part to a larger one"),
        (["task.json", "--sms", "0.5,2"], "--sms takes parts of a device from 0.001 to 1"),
        (["task.json", "--quota", "a..b"], "--quota takes parts of a device"),
        (["task.json", "--quota", "0.5,0.5"], "--quota: the part 0.5 stands there twice"),
        (["task.json", "--batch", "0"], "--batch takes whole numbers, as 1,2,4, not '0'"),
        (["none.json"], "there is no file 'none.json'"),
        (["device.toml"], "neither a model"),
        (["task.json", "--device", "tpu"], "--device is gpu, software, or a file"),
        (["task.json", "--device", "task.json"], "--device is gpu, software, or a file"),
        (["task.json", "--plot", "figure.pdf"], "does not end with .png"),
        (["task.json", "--profiles", "task.json"], "it is read"),
        (["task.json", "--profiles", "device.toml"], "device.toml is no list of profiles"),
        (["task.json", "--scalar", "a=1"], "there are no scalars"),
        (["task.json", "--name", "p", "--device", "gpu"], "--device is of a pool of its own"),
    ],
)
def test_what_is_refused_leaves_no_file(arguments: list[str], said: str) -> None:
    with pytest.raises(kaas.KaasError, match=said):
        profiled(*arguments, device=None)
    assert not Path("profiles.jsonl").exists()
