"""cTasks of a server, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np


def from_text(values: Mapping[str, bytes]) -> dict[str, Any]:
    """Numbers as text, to what the kTask reads."""
    return {"x": np.array(values["text"].decode().split(), np.float32)}


def total(values: Mapping[str, bytes]) -> dict[str, Any]:
    return {"total": np.frombuffer(values["y"], np.float32).sum(keepdims=True)}


def fail(values: Mapping[str, bytes]) -> dict[str, Any]:
    raise LookupError(f"no {len(values)}")


def end(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    os._exit(1)


def stall(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    """Does not end by itself."""
    threading.Event().wait()
    return {}


def halves(values: Mapping[str, bytes]) -> dict[str, Any]:
    y = np.frombuffer(values["y"], np.float32)
    return {"first": y[: y.size // 2].reshape(2, -1), "rest": bytes(values["y"][len(values["y"]) // 2 :])}
