"""What a user gets of the paper's claim: with more tenants than devices, kTasks go on where eTasks start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.papers.cells import Cell, Found, Side, measured
from kaas.papers.experiment_server import serve
from kaas.papers.workloads import WORKLOADS, Scale

pytestmark = [pytest.mark.ray, pytest.mark.processes]

TENANTS = 3


def with_one_device(folder: Path, side: Side) -> Found:
    folder.mkdir()
    scale, workload = Scale(devices=1), WORKLOADS["resnet50"]
    with serve(folder, side.policy, scale, TENANTS) as server:
        registered = server.ktasks if side is Side.KTASK else server.etasks
        with registered(workload, TENANTS) as replicas:
            return measured(Cell(workload.name, side, TENANTS), replicas, scale, None)


def test_three_tenants_of_one_device(tmp_path: Path) -> None:
    ktask, etask = (with_one_device(tmp_path / side.name, side) for side in (Side.KTASK, Side.ETASK_EXCLUSIVE))
    for found in (ktask, etask):
        assert not found.errors
        assert not found.lost
    assert ktask.rate_per_s > 3 * etask.rate_per_s
