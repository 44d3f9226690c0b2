"""Choices are measured, kept, and taken by gemm; their files may be damaged, shared or of other kernels."""

from __future__ import annotations

import logging
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from cutlass_blas import choice, gemms, records, sources, tuning
from cutlass_blas.__main__ import main
from cutlass_blas.errors import BlasError, InvalidOption
from cutlass_blas.instances import Instance, parse
from cutlass_blas.records import Choice, Key, RecordsUnavailable
from cutlass_blas.trials import WrongResult
from cutlass_blas.tuning import Failed, Measured, TuningFailed, tune
from kaas.errors import DeviceLost, DeviceUnavailable
from tests.timeouts import TIMEOUT_S

SOFTWARE = kaas.Device("software")
SMALL, LARGE = "sgemm_nn_64x64x8_2", "sgemm_nn_128x128x8_4"
KEY = Key("sm_80", "s", "float32", "n", "n", 40, 50, 60, 1, 1, 1, False)


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    """Give the test its own records."""
    path = tmp_path / "deep" / "blas.sqlite3"
    records.use(path)
    gemms.forget()
    yield path
    records.use(None)
    gemms.forget()


def operands(m: int = 40, n: int = 50, k: int = 60) -> tuple[kaas.Buffer, kaas.Buffer, kaas.Buffer]:
    return kaas.Buffer("a", (m, k), "float32"), kaas.Buffer("b", (k, n), "float32"), kaas.Buffer("c", (m, n), "float32")


def taken() -> str:
    """Return the kernel that gemm takes for KEY."""
    (kernel,) = gemms.gemm(*operands())
    return kernel.symbol


def offered(monkeypatch: pytest.MonkeyPatch, *picks: tuple[str, int]) -> None:
    """Let the table offer these candidates."""
    monkeypatch.setattr(choice, "candidates", lambda _: [(parse(name), slices) for name, slices in picks])


# --- tune


@pytest.mark.full
def test_the_measured_choice_is_taken_from_then_on_and_by_other_processes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, (SMALL, 1), (LARGE, 1))
    seen: list[tuple[int, int, Measured | Failed]] = []
    monkeypatch.setattr(tuning, "_seconds", faster_the_later(tuning._seconds))
    (tuned,) = tune((40, 50, 60), arch="sm_80", device=SOFTWARE, progress=lambda *step: seen.append(step))
    assert tuned.key == KEY
    assert [(number, of, each.choice.instance) for number, of, each in seen] == [(1, 2, SMALL), (2, 2, LARGE)]
    assert tuple(each for _, _, each in seen) == tuned.candidates
    assert tuned.best.choice == Choice(LARGE, 1)
    assert taken() == LARGE
    program = (
        "from cutlass_blas import gemm; import kaas\n"
        "a, b, c = (kaas.Buffer(n, s, 'float32') for n, s in zip('abc', ((40, 60), (60, 50), (40, 50))))\n"
        "print(gemm(a, b, c)[0].symbol)"
    )
    environment = {**os.environ, records.ENVIRONMENT: str(file)}
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert other.stdout.strip() == LARGE


def faster_the_later(measure: Any) -> Any:
    """The times are invented, the runs are real."""
    times = iter((3.0, 2.0, 1.0))

    def made_up(*arguments: Any) -> float:
        measure(*arguments)
        return next(times)

    return made_up


def test_a_result_of_the_software_gpu_is_kept_only_on_request(file: Path) -> None:
    (tuned,) = tune((40, 50, 60), device=SOFTWARE, most=1)
    assert tuned.best.choice == Choice(SMALL, 1)
    assert not file.exists()


@pytest.mark.parametrize("options", [
    {"trans_b": "t"},
    {"layout": "column", "trans_a": "t", "count": 2},
])  # fmt: skip
def test_a_candidate_is_checked_against_the_product_in_any_layout(options: dict[str, Any]) -> None:
    (tuned,) = tune([(30, 40, 50)], ["float32"], device=SOFTWARE, most=1, **options)
    assert isinstance(tuned.candidates[0], Measured)
    assert tuned.best.seconds > 0


@pytest.mark.full
def test_a_candidate_that_is_wrong_or_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, (SMALL, 1), (LARGE, 1), ("sgemm_nn_128x64x8_4", 1))
    whole = gemms.gemm

    def partly(*arguments: Any, _chosen: tuple[Instance, int], **options: Any) -> tuple[kaas.Kernel, ...]:
        if _chosen[0].name == LARGE:
            options["alpha"] = 2
        if _chosen[0].name == "sgemm_nn_128x64x8_4":
            raise BlasError("it cannot be built")
        return whole(*arguments, _chosen=_chosen, **options)

    monkeypatch.setattr(gemms, "gemm", partly)
    (tuned,) = tune((40, 50, 60), device=SOFTWARE)
    right, wrong, failed = tuned.candidates
    assert isinstance(right, Measured)
    assert isinstance(wrong, Failed)
    assert isinstance(wrong.error, WrongResult)
    assert wrong.error.wrong > 0
    assert isinstance(failed, Failed)
    assert failed.error.message == "it cannot be built"
    assert tuned.best is right
    offered(monkeypatch, (LARGE, 1))
    with pytest.raises(TuningFailed, match="elements wrong") as caught:
        tune((40, 50, 60), device=SOFTWARE)
    assert list(caught.value.reasons) == [LARGE]


def test_a_lost_device_ends_the_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> float:
        raise DeviceLost("gone")

    monkeypatch.setattr(tuning, "_seconds", lost)
    with pytest.raises(DeviceLost):
        tune((40, 50, 60), device=SOFTWARE)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured() -> None:
    with pytest.raises(DeviceUnavailable):
        tune((40, 50, 60))


@pytest.mark.parametrize("shapes", [(1, 2), (1, 2, 0), [(1, 2, 3), (4, 5)], (1, 2, "3"), 5, [[]], "abc", (True, 2, 3)])
def test_shapes_that_are_none(shapes: Any) -> None:
    with pytest.raises(InvalidOption, match="three positive integers"):
        tune(shapes, device=SOFTWARE)


def test_sizes_may_be_of_other_libraries() -> None:
    (tuned,) = tune(np.array([8, 9, 10]), device=SOFTWARE, most=np.int64(1))  # type: ignore[arg-type]
    assert (tuned.key.m, tuned.key.n, tuned.key.k) == (8, 9, 10)


@pytest.mark.parametrize(
    "options", [{"most": 0}, {"most": -1}, {"most": "1"}, {"count": 0}, {"count": -1}, {"count": 1.5}]
)
def test_numbers_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="is a positive integer, not"):
        tune((1, 2, 3), device=SOFTWARE, **options)


def test_dtypes_and_devices_that_are_none() -> None:
    with pytest.raises(InvalidOption, match=r"kaas\.Device, not 0"):
        tune((1, 2, 3), device=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="no products of 'int8'"):
        tune((1, 2, 3), "int8", device=SOFTWARE)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "40", "50", "60", "float32", "--device", "software", "--arch", "sm_80", "--most", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"[1/1] {SMALL}: ")
    assert lines[1] == f"{SMALL} is the fastest on KaaS software GPU"
    assert main(["tune", "40", "50", "0", "--device", "software"]) == 1
    assert "three positive integers" in capsys.readouterr().err


# --- records


def test_the_last_measurement_counts(file: Path) -> None:
    assert records.best(KEY) is None
    records.store(KEY, Choice(SMALL, 1), "one device", 1.0)
    records.store(KEY, Choice(LARGE, 2), "another", 2.0)
    assert records.best(tuple(KEY)) == Choice(LARGE, 2)
    records.use(file)  # the file is read again
    assert records.best(KEY) == Choice(LARGE, 2)
    records.store(KEY, Choice(SMALL, 3), "one device", 1.0)
    records.use(file)
    assert records.best(KEY) == Choice(SMALL, 3)
    assert records.best(KEY._replace(m=41)) is None


def test_a_choice_of_another_version_of_a_kernel_does_not_count(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.store(KEY, Choice(SMALL, 1), "device", 1.0)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE choices_1 SET instance = 'sgemm_that_was'")
    records.use(file)
    assert records.best(KEY) is None
    records.store(KEY, Choice(SMALL, 1), "device", 1.0)
    monkeypatch.setattr(sources, "version", lambda _: "another")
    records.use(file)
    assert records.best(KEY) is None


@pytest.mark.parametrize(
    ("column", "value"),
    [("slices", None), ("slices", "many"), ("slices", 2.5), ("slices", 0), ("slices", -3), ("instance", None),
     ("instance", b"\xff"), ("version", None)],
)  # fmt: skip
def test_a_malformed_row_does_not_count(file: Path, column: str, value: object) -> None:
    """SQLite keeps anything in any column."""
    before = taken()
    records.store(KEY, Choice(SMALL, 1), "device", 1.0)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"UPDATE choices_1 SET {column} = ?", (value,))
    records.use(file)
    gemms.forget()
    assert records.best(KEY) is None
    assert taken() == before


@pytest.mark.parametrize(
    "other", ["sgemm_nt_64x64x8_2", "dgemm_nn_64x64x8_2", "hgemm_nn_64x64x32_4_a8", "sgemm_nn_64x64x8_2_gelu", "gemv"]
)
def test_a_kernel_of_another_product_does_not_count(file: Path, other: str) -> None:
    before = taken()
    records.store(KEY, Choice(other, 1), "device", 1.0)
    records.use(file)
    gemms.forget()
    assert taken() == before


def test_slices_are_written_to_a_workspace() -> None:
    """The kernel of a product with slices writes sums, in the dtype of sums."""
    shape = (64, 64), "float16"
    a, b, c = (kaas.Buffer(name, *shape) for name in "abc")
    key = gemms.key_of(a, b, c)
    for name in ("hgemm_nn_64x64x32_4_a8", "hgemm_nn_128x128x32_4_a8_float32"):
        for slices in (1, 2):
            records.store(key, Choice(name, slices), "device", 1.0)
            gemms.forget()
            taken = [kernel.symbol for kernel in gemms.gemm(a, b, c)]
            assert (taken == [name, "finish_float16"]) is (name.endswith("_float32") and slices == 2)


def test_records_that_others_can_only_read(file: Path) -> None:
    """The folder of the records may be read-only: reading writes no other file there."""
    records.store(KEY, Choice(SMALL, 1), "device", 1.0)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_path_that_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    records.use("x" * 5000)
    assert records.best(KEY) is None
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 4000, b""])
def test_a_damaged_file_is_no_obstacle(file: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "cutlass_blas"):
        before = taken()
    assert ("cannot be read" in caplog.text) is bool(content)
    other = LARGE if before == SMALL else SMALL
    records.store(KEY, Choice(other, 1), "device", 1.0)
    assert file.with_name("blas.sqlite3.damaged").exists() is bool(content)
    records.use(file)
    gemms.forget()
    assert taken() == other


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    records.use(tmp_path / "file" / "blas.sqlite3")
    assert records.best(KEY) is None
    with pytest.raises(RecordsUnavailable, match="cannot be kept") as caught:
        records.store(KEY, Choice(SMALL, 1), "device", 1.0)
    assert caught.value.path.endswith("blas.sqlite3")


def test_several_processes_keep_their_measurements(file: Path) -> None:
    program = (
        "import sys; from cutlass_blas import records\n"
        f"key = records.Key(*{tuple(KEY)!r})\n"
        "for n in range(20):\n"
        f"    records.store(key._replace(m=int(sys.argv[1]), n=n), records.Choice({SMALL!r}, 1), 'device', 1.0)\n"
    )
    environment = {**os.environ, records.ENVIRONMENT: str(file)}
    started = [subprocess.Popen([sys.executable, "-c", program, str(m)], env=environment) for m in range(3)]
    assert [process.wait(TIMEOUT_S) for process in started] == [0, 0, 0]
    records.use(file)
    assert all(records.best(KEY._replace(m=m, n=n)) for m in range(3) for n in range(20))


def test_errors_survive_pickling() -> None:
    raised = (
        WrongResult("wrong", instance=SMALL, wrong=3),
        TuningFailed("failed", problem="p", reasons={SMALL: "why"}),
        RecordsUnavailable("no", path="p", reason="r"),
    )
    for error in raised:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.message, again.fields) == (type(error), error.message, error.fields)
