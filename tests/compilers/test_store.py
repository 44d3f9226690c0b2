"""The store of compiled models: entries are whole, its size is bounded, processes share it, and damage is harmless."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.code.kernels import library
from tvm_backend.store import STALE_S, SWITCH, Store, store


def model(name: str, values: int = 8) -> kaas.CompiledModel:
    """Return a model of x - constant for 8 values."""
    x, constant, y = (kaas.Buffer(each, (8,), "float32") for each in ("x", "constant", "y"))
    arguments: list[Any] = [kaas.In(x), kaas.In(constant), kaas.Out(y), kaas.u32(8)]
    task = kaas.KTask([kaas.Kernel(library("nearest_neighbours"), "vsub", 1, 256, arguments)], [y])
    about = {"padding": "." * values}
    return kaas.CompiledModel(name, [kaas.Variant(task, (x,))], {"constant": np.ones(8, np.float32)}, about)


def test_a_stored_model_is_found(tmp_path: Path) -> None:
    models = Store(tmp_path / "models")
    assert models.get("a") is None
    models.put("a", model("one"))
    found = models.get("a")
    assert found is not None
    assert found.name == "one"
    assert found.variants == model("one").variants
    assert models.get("b") is None


def test_a_damaged_entry_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = Store(tmp_path)
    models.put("a", model("one"))
    (entry,) = tmp_path.iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert models.get("a") is None
    assert "damaged" in caplog.text
    assert not entry.exists()
    models.put("a", model("one"))
    assert models.get("a") is not None


def test_the_longest_unused_models_are_evicted(tmp_path: Path) -> None:
    models = Store(tmp_path)
    for age, key in ((300, "a"), (200, "b"), (100, "c")):
        models.put(key, model(key))
        status = (tmp_path / f"{key}.kaas").stat()
        os.utime(tmp_path / f"{key}.kaas", ns=(0, status.st_mtime_ns - age * 10**9))
    size = (tmp_path / "a.kaas").stat().st_size
    assert models.get("a") is not None  # the hit makes it the newest
    Store(tmp_path, limit_bytes=3 * size + size // 2).put("d", model("d"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.kaas", "c.kaas", "d.kaas"]


def test_a_killed_writer_s_draft_is_removed_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, age in ((".a.kaas.killed", 1), (".a.kaas.writing", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tensors").write_bytes(b"half")
        written_s = time.time() - age * 2 * STALE_S
        os.utime(tmp_path / name, (written_s, written_s))
    models = Store(tmp_path, limit_bytes=0)
    models.put("a", model("one"))
    assert caplog.text == ""
    assert [path.name for path in tmp_path.iterdir()] == [".a.kaas.writing"]  # and a limit still counts


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    models = Store(tmp_path / "file" / "models")
    with caplog.at_level(logging.WARNING):
        models.put("a", model("one"))
        assert models.get("a") is None
    assert "cannot store" in caplog.text


def test_processes_share_the_store(tmp_path: Path) -> None:
    """Several processes write and read one entry at once: each read gives the whole model or nothing."""
    program = (
        "import sys; from pathlib import Path; from tests.compilers.test_store import model; "
        "from tvm_backend.store import Store\n"
        "models = Store(Path(sys.argv[1]))\n"
        "for count in range(20):\n"
        "    models.put('shared', model('one', 100 * count))\n"
        "    found = models.get('shared')\n"
        "    assert found is not None and found.name == 'one', found\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["shared.kaas"]


def test_the_store_is_in_the_cache_folder_unless_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    found = store()
    assert found is not None
    assert found.directory == tmp_path / "kaas" / "models"
    monkeypatch.setenv(SWITCH, "0")
    assert store() is None
