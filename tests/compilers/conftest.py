"""These tests compile every model: a model from the store would not test the compiler."""

from __future__ import annotations

import os

os.environ.setdefault("KAAS_MODEL_CACHE", "0")
