"""Models are compiled anew in these tests: what the store would give says nothing of the compiler."""

from __future__ import annotations

import os

os.environ.setdefault("KAAS_MODEL_CACHE", "0")
