"""The cTasks of the workloads: a step before the device's work, and one after it (§5.3).

A step waits for its share of Table 1's CPU time, instead of computing. The paper's host has a core for each step under
way; a smaller machine would measure its own lack of cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import sleep
from typing import Any

import numpy as np

from kaas.papers.small.testbed import SMALL
from kaas.papers.testbed import Step
from kaas.papers.workloads import BEFORE_SHARE, WORKLOADS, Workload


def before(workload: Workload) -> Step:
    """Return the step that makes the input, float32, of the bytes that a client sends."""

    def step(values: Mapping[str, bytes]) -> dict[str, Any]:
        sleep(workload.cpu_s * SMALL.slow * BEFORE_SHARE)
        return {"x": np.frombuffer(values["data"], np.uint8).astype(np.float32)}

    return step


def after(workload: Workload) -> Step:
    """Return the step that makes a client's result of the output: its first element, as the largest of some scores."""

    def step(values: Mapping[str, bytes]) -> dict[str, Any]:
        sleep(workload.cpu_s * SMALL.slow * (1 - BEFORE_SHARE))
        return {"score": np.frombuffer(values["y"], np.float32)[:1]}

    return step


resnet50_before, resnet50_after = before(WORKLOADS["resnet50"]), after(WORKLOADS["resnet50"])
bert_before, bert_after = before(WORKLOADS["bert"]), after(WORKLOADS["bert"])
