"""The full scale's networks, cut short: kTasks, TVM's own runtime and ONNX's evaluator give one result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")

import tvm

import kaas
from kaas.bench.networks import WORDS, bert
from kaas.errors import DeviceUnavailable, MissingPackage
from kaas.papers.cells import Side
from kaas.papers.experiment_server import serve
from kaas.papers.full import etasks
from kaas.papers.full import testbed as full
from kaas.papers.full.matrices import Products
from kaas.papers.full.networks import BIAS, Network
from kaas.papers.full.steps import SIDE, picture, text
from kaas.papers.full.testbed import FullTestbed
from kaas.papers.full.works import FOLDER, MICRO, TEXT
from kaas.papers.workloads import WORKLOADS

DATA = np.frombuffer(TEXT[:100], np.uint8)
LARGE = Products("cgemm", "complex64", 1, 12_000, 12_000)
TINY = Network("bert", lambda: bert(hidden=32, heads=2, layers=1), DATA, text)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("value", [1.0, 7.0])
def test_a_ktask_gives_its_replicas_answer(value: float) -> None:
    inputs = {**text(DATA.tobytes()), **TINY.constants(value)}
    (scores,) = kaas.run_local(TINY.task(), inputs).values()
    assert scores.flat[0] == pytest.approx(TINY.answer(value), abs=1e-3)


def test_tvm_s_own_runtime_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TINY.export(tmp_path, tvm.target.Target("llvm"))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(etasks.NetworkByTvm, "kind", "cpu")
    task = etasks.BertByTvm()
    for _ in range(2):
        scores = task(**text(DATA.tobytes()))
        assert scores.shape == (1, WORDS, 2)
        assert scores.flat[0] == pytest.approx(TINY.answer(etasks.VALUE), abs=1e-3)


def test_no_two_replicas_weights_have_the_same_contents() -> None:
    one, two = (TINY.constants(value) for value in (1.0, 2.0))
    same = [name for name in one if one[name].tobytes() == two[name].tobytes()]
    assert sum(one[name].nbytes for name in same) <= 16, same  # single numbers, such as that of padding


def test_a_picture_and_a_text_become_inputs() -> None:
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[0, 1] = 255, 0, 0
    x = picture(pixels.tobytes())["x"]
    assert x.shape == (1, 3, SIDE, SIDE)
    np.testing.assert_allclose(x[0, :, 0, 1], [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-5)
    words = text(b"why" * 20)
    assert words["mask"].sum() == 60
    assert words["segments"].sum() == 60 - 24
    assert words["tokens"][0, 1] == 1000 + ord("h")


class TinyTestbed(FullTestbed):
    """The full scale on a software device, without eTasks."""

    def device(self) -> dict[str, Any]:
        return {"kind": "software", "memory_bytes": 2 << 30}

    def prepare(self, folder: Path) -> Mapping[str, str]:  # noqa: ARG002
        return {}


@pytest.mark.ray
@pytest.mark.processes
@pytest.mark.full
def test_clients_of_a_server_get_a_network_s_answers_through_its_steps(tmp_path: Path) -> None:
    works = {**dict.fromkeys(WORKLOADS, TINY), "micro": MICRO, "cgemm": LARGE}
    testbed, workload = TinyTestbed(1, "software", "sm_80", works), WORKLOADS["bert"]
    with (
        serve(tmp_path, Side.KTASK.policy, testbed, 2) as server,
        server.ktasks(workload, 2) as replicas,
    ):
        replicas.warm(4, 1)
        assert replicas.answers[1] - replicas.answers[0] == pytest.approx(BIAS)
        for name in ("micro", "cgemm"):  # by the BLAS library, the second with more constants than a client may store
            with server.ktasks(WORKLOADS[name], 1) as replica:
                replica.warm(1, 1)


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full, "gpu_count", lambda: 0)
    with pytest.raises(DeviceUnavailable, match="--scale full needs an NVIDIA GPU; --scale small has"):
        full.full_testbed()
    monkeypatch.setattr(full, "gpu_count", lambda: 1)
    monkeypatch.setattr(full, "PACKAGES", {"no_such": "'./no/such'", "json": "json", "neither": "neither"})
    told = r"--scale full needs no_such, neither; in a clone of KaaS: pip install './no/such' neither"
    with pytest.raises(MissingPackage, match=told):
        full.full_testbed()
