"""The full scale's products and solver, cut short: kTasks and CuPy's eTasks compute one result."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass_blas")

import cutlass_blas  # noqa: F401 - the file is of the lane of compilers
import kaas
from kaas.papers.full import etasks
from kaas.papers.full.matrices import Products, Solver
from kaas.papers.full.work import Work
from kaas.papers.full.works import CGEMM, JACOBI, MICRO
from kaas.papers.workloads import WORKLOADS

CUT: dict[str, Work] = {
    "cgemm": Products("cgemm", "complex64", 100, 100, 250),
    "micro": Products("micro", "float32", *[64] * 5),
    "jacobi": Solver(64, 2400),
}
EACH = pytest.mark.parametrize("work", CUT.values(), ids=list(CUT))


@pytest.fixture
def numpy_as_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy has NumPy's functions; it needs a GPU."""
    there = SimpleNamespace(**{**vars(np), "asnumpy": np.asarray})
    monkeypatch.setattr(etasks, "import_module", {"cupy": there}.__getitem__)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("value", [1.0, 7.0])
@EACH
def test_a_ktask_gives_its_replicas_answer(work: Work, value: float) -> None:
    (result,) = kaas.run_local(work.task(), {**work.inputs(), **work.constants(value)}).values()
    np.testing.assert_allclose(result, work.answer(value), rtol=1e-4)


@pytest.mark.usefixtures("numpy_as_cupy")
def test_an_etask_gives_the_answer_of_the_ktask() -> None:
    cgemm = type("CutCgemm", (etasks.CgemmByCupy,), {"work": CUT["cgemm"]})()
    micro = type("CutMicro", (etasks.MicroByCupy,), {"work": CUT["micro"]})()
    made: dict[str, Callable[..., Any]] = {"cgemm": cgemm, "micro": micro, "jacobi": etasks.jacobi}
    for name, work in CUT.items():
        np.testing.assert_allclose(made[name](**work.inputs()), work.answer(etasks.VALUE), rtol=1e-4)


def test_no_two_replicas_constants_have_the_same_contents() -> None:
    """A cache keeps equal contents once, and the memory limit would be gone."""
    for work in CUT.values():
        contents = [each.tobytes() for value in (1.0, 2.0) for each in work.constants(value).values()]
        assert len(set(contents)) == len(contents)


def test_the_sizes_are_those_of_table_1() -> None:
    assert CGEMM.task().buffers
    (constant,) = (each for each in CGEMM.task().buffers if each.name in CGEMM.constant_names())
    assert constant.nbytes == WORKLOADS["cgemm"].constant_bytes
    held = sum(each.nbytes for each in MICRO.task().buffers if each.name in MICRO.constant_names())
    assert held == pytest.approx(WORKLOADS["micro"].constant_bytes, rel=0.05)
    assert JACOBI.inputs()["a"].nbytes == pytest.approx(WORKLOADS["jacobi"].dynamic_bytes, rel=0.05)
