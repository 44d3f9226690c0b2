"""A module that starts processes, which have all its files and end with it, for tests."""

from __future__ import annotations

import os
import subprocess

from tests.server.steps.functions import same

__all__ = ["CAT", "same"]

_waits, _held = os.pipe()
if not os.fork():
    os.close(_held)
    os.read(_waits, 1)
    os._exit(0)
CAT = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=False)
