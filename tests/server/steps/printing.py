"""A module for tests that prints, and whose steps print."""

from __future__ import annotations

import subprocess

from tests.server.steps.functions import same

__all__ = ["same"]

print("a line of a module's")
subprocess.run(["echo", "and of what it runs"], check=True)
