"""The programs in what is written about models run as they stand, on a small network in the place of ResNet-50."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import kaas
from tests.compilers.onnx_cases import model, value

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pool(start: Callable[..., bool]) -> None:
    start(devices=[kaas.Device("software", memory_bytes=128 << 20)], name="documents")


def network() -> onnx.ModelProto:
    """As a classifier of pictures: the means of their channels in, ten scores out."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["means"]),
        helper.make_node("Flatten", ["means"], ["channels"]),
        helper.make_node("MatMul", ["channels", "weight"], ["scores"]),
    ]
    weights = {"weight": np.random.default_rng(0).standard_normal((3, 10), np.float32)}
    return model(nodes, [value("input", ["batch", 3, 224, 224])], ["scores"], weights)


@pytest.mark.ray
@pytest.mark.usefixtures("pool", "softgpu")
@pytest.mark.parametrize("document", ["README.md", "docs/models.md", "compilers/tvm_backend/README.md"])
def test_its_programs_run(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of models: of README.md the one that compiles, of the others all."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "resnet50.onnx")
    programs = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for program in (one for one in programs if document != "README.md" or "tvm_backend" in one):
        exec(program.replace("kaas.init()", 'kaas.init(name="documents")'), names)
    assert kaas.load("resnet50.kaas").inputs == ("input",)
    assert len(kaas.status().functions) == 2
