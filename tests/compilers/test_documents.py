"""The programs in the pages about models run unchanged, on a small network in the place of ResNet-50."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import kaas
from tests.compilers.onnx_cases import classifier

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pool(start: Callable[..., bool]) -> None:
    start(devices=[kaas.Device("software", memory_bytes=128 << 20)], name="documents")


@pytest.mark.ray
@pytest.mark.usefixtures("pool", "softgpu")
@pytest.mark.parametrize("document", ["docs/models.md", "compilers/tvm_backend/README.md"])
def test_its_programs_run(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "resnet50.onnx")
    programs = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for program in programs:
        exec(program.replace("kaas.init()", 'kaas.init(name="documents")'), names)
    assert kaas.load("resnet50.kaas").inputs == ("input",)
    assert len(kaas.status().functions) == 2
