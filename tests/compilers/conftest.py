"""These tests compile every model: a model from the store would not test the compiler."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

os.environ.setdefault("KAAS_MODEL_CACHE", "0")


@pytest.fixture(scope="session")
def scripts() -> ModuleType:
    """The modules in TVM's scripting languages. TVM takes seconds to read them, in each process that collects tests."""
    return importlib.import_module("tests.compilers.lowering_scripts")
