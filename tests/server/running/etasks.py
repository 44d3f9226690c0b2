"""eTasks of a server, for tests."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

import kaas
from tests.server.servers import scaled


def double(x: Any) -> Any:
    """On the device that it has to itself."""
    return kaas.run_local(scaled(), {"x": x})["y"]


@kaas.etask
class Sums:
    """Keeps state as long as its process runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any, y: Any) -> dict[str, Any]:
        self.calls += 1
        return {"sum": x + y, "about": np.array([self.calls, os.getpid()], np.int64)}


def fail(x: Any) -> Any:
    raise LookupError(f"no {x.size}")


def wrong(x: Any) -> Any:
    return x[:1]


def stall(x: Any) -> Any:
    threading.Event().wait()
    return x


def end(x: Any) -> Any:  # noqa: ARG001
    os._exit(1)
