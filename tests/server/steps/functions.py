"""cTasks of a server, for tests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NOTHING = "to call"


def from_text(values: Mapping[str, bytes]) -> dict[str, Any]:
    """Turn numbers as text into the input of the kTask."""
    return {"x": np.array(values["text"].decode().split(), np.float32)}


def whole_numbers(values: Mapping[str, bytes]) -> dict[str, Any]:
    return {"x": np.array(values["text"].decode().split(), np.int32)}


def folded(values: Mapping[str, bytes]) -> dict[str, Any]:
    """The right number of numbers, in a matrix."""
    return {"x": np.array(values["text"].decode().split(), np.float32).reshape(2, -1)}


def total(values: Mapping[str, bytes]) -> dict[str, Any]:
    return {"total": np.frombuffer(values["y"], np.float32).sum(keepdims=True)}


def total_later(values: Mapping[str, bytes]) -> dict[str, Any]:
    """Say that the device has run, in a file of the working folder's environment, and wait for its removal."""
    begun = Path(os.environ["STEP_BEGUN"])
    begun.touch()
    while begun.exists():
        time.sleep(0.01)
    return total(values)


def same(values: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return values


def fail(values: Mapping[str, bytes]) -> dict[str, Any]:
    raise LookupError(f"no {len(values)}")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def fail_without_text(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    raise Mute


def fail_with_half_a_letter(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    raise LookupError("half a letter: \ud800")


def name_by_half_a_letter(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    return {"\ud800": b""}


def name_by_number(values: Mapping[str, bytes]) -> dict[Any, Any]:
    return dict(enumerate(values.values()))


def end(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    os._exit(1)


def wait(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    threading.Event().wait()
    return {}


def pid(values: Mapping[str, bytes]) -> dict[str, Any]:  # noqa: ARG001
    return {"pid": np.array([os.getpid()])}


def leave(values: Mapping[str, bytes]) -> dict[str, Any]:
    raise SystemExit(len(values))


def halves(values: Mapping[str, bytes]) -> dict[str, Any]:
    y = values["y"]
    return {"first": np.frombuffer(y, np.float32)[: len(y) // 8].reshape(2, -1), "rest": y[len(y) // 2 :]}
