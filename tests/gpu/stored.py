"""Cases in files: a kTask, its inputs, the software GPU's outputs. GPU tests thus need neither softgpu nor Ray."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kaas

FOLDER = Path(__file__).parent / "expected"

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Stored:
    """One case. rtol: allowed difference of results, as a share of the largest; 0: equal bits."""

    task: kaas.KTask
    inputs: Arrays
    scalars: dict[str, Any]
    outputs: Arrays
    rtol: float


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name: str) -> Stored:
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    about = json.loads(arrays["about"].tobytes())
    return Stored(
        kaas.KTask.from_msgpack(arrays["task"].tobytes()),
        {name: arrays[f"in.{name}"] for name in about["inputs"]},
        about["scalars"],
        {name: arrays[f"out.{name}"] for name in about["outputs"]},
        about["rtol"],
    )


def save(name: str, case: Stored) -> int:
    """Store a case. Return the file's size in bytes."""
    about = {"inputs": list(case.inputs), "outputs": list(case.outputs), "scalars": case.scalars, "rtol": case.rtol}
    arrays = {
        "task": np.frombuffer(case.task.to_msgpack(), np.uint8),
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        **{f"in.{key}": value for key, value in case.inputs.items()},
        **{f"out.{key}": value for key, value in case.outputs.items()},
    }
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return path.stat().st_size


def assert_same(outputs: Arrays, expected: Arrays, rtol: float) -> None:
    """Compare names, shapes, dtypes and values. rtol is a share of each output's largest magnitude."""
    assert list(outputs) == list(expected)
    for name, value in outputs.items():
        other = expected[name]
        assert (value.shape, value.dtype) == (other.shape, other.dtype)
        if rtol == 0:
            np.testing.assert_array_equal(value, other, err_msg=name)
        else:
            largest = float(np.abs(other).max())
            np.testing.assert_allclose(value, other, rtol=0, atol=rtol * largest, err_msg=name)


def assert_answer(found: Any, case: Stored) -> None:
    """Check what a call of a case's kTask returned: an array, a tuple of arrays, or arrays by name."""
    values = found if isinstance(found, tuple) else (found,)
    outputs = found if isinstance(found, dict) else dict(zip(case.outputs, values, strict=True))
    assert_same(outputs, case.outputs, case.rtol)
