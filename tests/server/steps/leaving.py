"""A module that ends the process that imports it, for tests."""

from __future__ import annotations

import os

os._exit(3)
