"""The paper's claim as a user sees it: with more tenants than devices, kTasks go on where eTasks start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.papers import cells
from kaas.papers.cells import Cell, Side, measured
from kaas.papers.experiment_server import serve
from kaas.papers.small.testbed import SmallTestbed
from kaas.papers.workloads import WORKLOADS

pytestmark = [pytest.mark.ray, pytest.mark.processes, pytest.mark.full]

TENANTS = 3
SLOWEST_START_S = 15.0


def test_three_tenants_of_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "SHORTEST_S", 0.6)  # seconds of a window, of which a cell has three
    monkeypatch.setattr(cells, "WINDOW_REQUESTS", 1)
    monkeypatch.setattr(cells, "WINDOWS", 3)
    monkeypatch.setattr(cells, "LEAST_EACH", 1)
    testbed, workload = SmallTestbed(devices=1), WORKLOADS["resnet50"]
    with serve(tmp_path, Side.KTASK.policy, testbed, TENANTS) as server:
        with server.ktasks(workload, TENANTS) as replicas:
            ktask = measured(Cell(workload.name, Side.KTASK, TENANTS), replicas, testbed, None)
        with server.etasks(workload, TENANTS) as replicas:
            # the cell ends with ENOUGH results; a machine on which processes start slowly has the time for them
            cell = Cell(workload.name, Side.ETASK_EXCLUSIVE, TENANTS)
            etask = measured(cell, replicas, testbed, None, start_s=SLOWEST_START_S)
    assert ktask.rate_per_s > 3 * etask.rate_per_s
