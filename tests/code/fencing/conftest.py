"""NVIDIA's assembler, which reads what is confined as a GPU's driver does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ptxas() -> str:
    nvidia = pytest.importorskip("nvidia")
    found = [path for folder in nvidia.__path__ for path in Path(folder).glob("*/bin/ptxas")]
    path = shutil.which("ptxas") or next(map(str, found), None)
    if path is None:
        pytest.skip("no ptxas")
    return path
